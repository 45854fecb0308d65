"""A curve as a drawing of its own: whole, legible without the page, empty where there is nothing to draw."""

import xml.etree.ElementTree as ET

from forerun.report.figure import STYLE, curve_lines, standalone
from forerun.report.tables import ResultCurve, Series

SVG = "{http://www.w3.org/2000/svg}"


def curve(*names):
    series = [Series(name=name, x=[0.0, 1.0], y=[0.9, 0.1], low=[0.8, 0.0], high=[1.0, 0.2]) for name in names]
    return ResultCurve(title="Dose", across="rate <effective>", up="exact match", series=series)


def test_a_drawing_stands_alone():
    root = ET.fromstring(standalone(curve("close", "same_length")))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"close", "same length", "rate <effective>", "exact match"} <= set(texts)
    assert len(list(root.iter(f"{SVG}polyline"))) == len(list(root.iter(f"{SVG}polygon"))) == 2
    assert root.find(f"{SVG}style").text == STYLE


def test_a_long_legend_takes_more_rows_inside_the_drawing():
    names = [f"a rather long name of a noise {number}" for number in range(9)]
    root = ET.fromstring(standalone(curve(*names)))
    width, height = (float(root.get(name)) for name in ("width", "height"))
    places = [(float(text.get("x")), float(text.get("y"))) for text in root.findall(f"{SVG}text")]
    assert all(0 <= x <= width and 0 <= y <= height for x, y in places)
    assert len({y for _, y in places}) >= 5


def test_every_style_of_a_line_has_a_colour():
    for line in curve_lines(curve(*"abcdefgh")):
        assert f".{line.style.split()[-1]}{{stroke" in STYLE


def test_nothing_is_drawn_without_points():
    assert standalone(ResultCurve(title="", across="", up="", series=[Series(name="a", x=[], y=[])])) is None
