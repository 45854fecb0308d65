"""Charts show the numbers of the forecast, none more and none less."""

import pytest

from forerun.units import GIB
from forerun.verify.test_compare import forecast
from forerun.web.charts import importance_bars, loss_curves, memory_bar, memory_over_step, parallel_lines, time_and_cost


def test_the_bar_ends_at_the_conservative_number():
    memory = forecast().model_dump(mode="json")["memory"]
    parts = [series["data"][0] for series in memory_bar(memory)["series"]]
    most = max(memory["device_bytes"]["conservative"], sum(memory["breakdown"].values()))
    assert sum(parts) == pytest.approx(most / GIB, abs=0.01)


def test_the_front_is_joined_in_order_of_time():
    rows = [
        {"gpu": name, "fits": fits, "cost": cost, "run_seconds": seconds, "is_on_front": front}
        for name, fits, cost, seconds, front in [
            ("slow", True, 1.0, 7200.0, True), ("fast", True, 4.0, 3600.0, True), ("bad", True, 5.0, 9000.0, False),
            ("small", False, None, None, False), ("unpriced", True, None, 10.0, True),
        ]
    ]  # fmt: skip
    points, front = time_and_cost(rows)["series"]
    assert [point["name"] for point in points["data"]] == ["slow", "fast", "bad"]
    assert front["data"] == [[1.0, 4.0], [2.0, 1.0]]


def test_phases_are_marked_where_they_begin():
    live = forecast().model_dump(mode="json")["memory"]["breakdown"]
    timeline = [
        {"seconds": s, "phase": p, "bytes": live} for s, p in [(0.0, "forward"), (1.0, "forward"), (2.0, "backward")]
    ]
    marks = memory_over_step(timeline, 8 * GIB)["series"][0]["markLine"]["data"]
    assert [(mark["xAxis"], mark["label"]["formatter"]) for mark in marks] == [(0, "forward"), (2000, "backward")]


def test_two_runs_have_two_curves_with_their_names():
    one, two = loss_curves({"a": [(1, 2.0)], "b": [(1, 3.0), (2, 1.0)]})["series"]
    assert (one["name"], one["data"]) == ("a", [[1, 2.0]])
    assert (two["name"], two["data"]) == ("b", [[1, 3.0], [2, 1.0]])
    assert one["color"] != two["color"]


def test_words_and_wide_numbers_get_their_axes():
    chart = parallel_lines(["recipe.pooling", "rate", "score"], [["mean", 1e-4, 0.5], ["cls", 1e-2, 0.75]], ["a", "b"])
    words, rate, score = chart["parallelAxis"]
    assert (words["data"], rate["type"], score.get("type")) == (["cls", "mean"], "log", None)
    assert chart["series"][0]["data"][1] == {"name": "b", "value": ["cls", 1e-2, 0.75]}
    assert (chart["visualMap"]["min"], chart["visualMap"]["max"]) == (0.5, 0.75)


def test_the_setting_that_mattered_most_is_on_top():
    rows = [{"name": "a.low", "value": 0.1, "by_chance": 0.2}, {"name": "a.high", "value": 0.9, "by_chance": 0.3}]
    chart = importance_bars(rows)
    assert chart["yAxis"]["data"] == ["low", "high"]
    assert chart["series"][0]["data"] == [0.1, 0.9]
    assert chart["series"][1]["data"] == [[0.2, 0], [0.3, 1]]
