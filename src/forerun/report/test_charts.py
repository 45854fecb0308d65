"""Views are worked out before they are drawn: axes, stacking, marks."""

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.report.charts import (
    HEIGHT,
    WIDTH,
    Band,
    Line,
    draw_lines,
    draw_stack,
    line_view,
    nice_ticks,
    stack_view,
)


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_cover_the_range_with_few_round_numbers(low, span):
    ticks = nice_ticks(low, low + span)
    assert ticks[0] <= low + 1e-6 * span + 1e-9 * abs(low)
    assert ticks[-1] >= low + span - 1e-6 * span - 1e-9 * abs(low)
    assert 2 <= len(ticks) <= 7


def test_an_endless_axis_is_refused():
    with pytest.raises(ValueError, match="finite"):
        nice_ticks(0, float("nan"))


def test_lines_stay_inside_the_drawing():
    line = Line(name="loss", style="one", points=[(1, 2.5), (2, 0.5), (3, 1.0)])
    view = line_view("Loss", "By step.", [line], bands=[Band(name="b", low=0.4, high=3.0)])
    assert view.up.low == 0
    assert view.up.high >= 3.0
    svg = draw_lines(view, str, str)
    root = ET.fromstring(svg)
    points = root.find("polyline").get("points").split()
    for point in points:
        x, y = map(float, point.split(","))
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT
    assert root.find("title").text == "Loss"
    assert len(root.findall("circle")) == 3, "each point was measured"
    many = Line(name="loss", style="one", points=[(x, 1.0) for x in range(60)])
    assert not ET.fromstring(draw_lines(line_view("Loss", "", [many]), str, str)).findall("circle")


def test_layers_stack_and_far_marks_are_left_out():
    view = stack_view("M", "d", [0, 1], [("a", "a", [1, 2]), ("b", "b", [3, 1])], [("peak", 4.0), ("capacity", 400.0)])
    assert view.layers[1].lower == view.layers[0].upper == [1, 2]
    assert view.layers[1].upper == [4, 3]
    assert [name for name, _ in view.marks] == ["peak"]
    assert len(ET.fromstring(draw_stack(view, str, str)).findall("polygon")) == 2


def test_names_of_marks_that_are_close_do_not_touch():
    view = stack_view("M", "d", [0, 1], [("a", "a", [100, 96])], [("peak", 96.0), ("capacity", 99.0)])
    texts = {each.text: float(each.get("y")) for each in ET.fromstring(draw_stack(view, str, str)).iter("text")}
    assert texts["peak"] - texts["capacity"] > 15


def test_names_are_escaped():
    view = stack_view("<b>", "d", [0, 1], [("a", "a", [1, 2])], [("<script>", 1.0)])
    assert "<script>" not in draw_stack(view, str, str)
