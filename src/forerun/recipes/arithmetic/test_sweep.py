import pytest

from forerun.evaluate.classification import clopper_pearson
from forerun.recipes.arithmetic import recipe as arithmetic
from forerun.recipes.arithmetic.data.rows import open_data
from forerun.recipes.arithmetic.sweep import VARIANTS, comparison
from forerun.records import Measurement
from forerun.runs.recipe import SweepRun
from forerun.settings.load import settings_from

BASE = arithmetic.SETTINGS.model_dump()


def run(name, right, **metrics):
    """A finished run of four questions, so many of them answered rightly."""
    settings = settings_from(BASE, VARIANTS[name])
    questions = [(1, 2, 3), (12, 9, 21), (95, 8, 103), (55, 60, 115)]
    test = [[left, right_, str(answer) if n < right else None] for n, (left, right_, answer) in enumerate(questions)]
    measurement = Measurement.model_construct(
        metrics={
            "effective_rate": settings.data.contamination.rate,
            "exact_match": right / 4,
            "exact_match_low": clopper_pearson(right, 4)[0],
            "exact_match_high": clopper_pearson(right, 4)[1],
            **metrics,
        }  # fmt: skip
    )
    early = [{"step": 10, "right_answer_probability": 0.25}, {"step": 20, "right_answer_probability": right / 4}]
    results = {"operation": "addition", "test": test, "beyond": [[100, 100, "200"]], "early": early}
    return SweepRun(name, settings, None, measurement, results)  # type: ignore[arg-type]


RUNS = [
    run("clean", 4), run("close 0.5", 3, **{"suspects.loss.precision": 0.9}), run("close 1", 0), run("swap 0.5", 2),
]  # fmt: skip


@pytest.mark.parametrize("name", list(VARIANTS))
def test_every_variant_is_a_setting(name):
    noise = settings_from(BASE, VARIANTS[name]).data.contamination
    assert (noise.rate == 0) == (name == "clean")
    assert name == "clean" or name == f"{noise.noise} {noise.rate:g}"


@pytest.mark.parametrize("digits", [2, 3, 5])
def test_every_variant_has_rows(digits):
    few = [f"recipe.max_digits={digits}", "recipe.starts=[1]", "recipe.per_cell=8", "recipe.test_per_cell=2"]
    for overrides in VARIANTS.values():
        data = open_data(settings_from(BASE, [*few, *overrides]))
        nominal = data.contamination.nominal_rate
        assert data.contamination.effective_rate == pytest.approx(nominal, abs=0.5 / len(data.rows))


def test_the_recipe_can_be_swept():
    assert arithmetic.VARIANTS is VARIANTS
    assert arithmetic.comparison is comparison


def test_a_clean_run_is_the_zero_of_every_noise():
    _, (response, _) = comparison(RUNS)
    lines = {series.name: series for series in response.series}
    assert lines["close"].x == [0, 0.5, 1]
    assert lines["close"].y == [1, 0.75, 0]
    assert lines["swap"].x == [0, 0.5]
    for line in lines.values():
        assert all(low <= y <= high for low, y, high in zip(line.low, line.y, line.high, strict=True))
    assert lines["close"].low[0] == pytest.approx(0.025**0.25)  # Clopper and Pearson, 4 of 4


def test_clean_runs_alone_have_a_line_too():
    _, (response, _) = comparison(RUNS[:1])
    assert [(series.name, series.y) for series in response.series] == [("clean", [1.0])]


def test_tables_hold_a_row_for_each_run():
    tables, curves = comparison(RUNS)
    by_title = {table.title: table for table in tables}
    assert [row[0] for row in by_title["Dose and response"].rows] == [run.name for run in RUNS]
    assert by_title["Exact match by digits of the longer operand"].rows[1] == ["close 0.5", 1.0, 2 / 3]
    assert by_title["Exact match by longest chain of carries"].columns == ["run", "chain 0", "chain 1", "chain 2"]
    assert by_title["Exact match beyond the lengths of training"].rows[0] == ["clean", 1.0]
    assert [row[0] for row in by_title["Finding the corrupt rows"].rows] == ["close 0.5"]
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)
    assert [series.x for series in curves[1].series] == [[10, 20]] * 4


def test_runs_without_what_they_kept_leave_gaps():
    bare = SweepRun("old", RUNS[0].settings, None, RUNS[0].measurement)  # type: ignore[arg-type]
    tables, _ = comparison([RUNS[0], bare])
    assert tables[1].rows[1][1:] == [None, None]
