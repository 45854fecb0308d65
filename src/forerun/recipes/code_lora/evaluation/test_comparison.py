import numpy as np
import pytest

from forerun.recipes.code_lora.recipe import SETTINGS, comparison
from forerun.runs.recipe import SweepRun
from forerun.verify.test_compare import forecast, measurement

TASKS = [f"template/{number}" for number in range(200)]


def run(name, passed, tasks=TASKS, **more):
    measured = measurement()
    results = {"tasks": list(tasks), "parses": [True] * len(tasks), "passed": [float(p) for p in passed], **more}
    return SweepRun(name, SETTINGS, forecast(), measured.model_copy(update={"metrics": {"code_bleu": 0.5}}), results)


def random_passes(share, seed=0):
    return (np.random.default_rng(seed).random(len(TASKS)) < share).tolist()


def pairs(runs):
    tables, curves = comparison(runs)
    assert curves == []
    return tables, tables[-1]


def test_a_clear_difference_and_noise_are_told_apart():
    good, same = random_passes(0.6), random_passes(0.6)
    same[:3] = [not value for value in same[:3]]
    tables, table = pairs([run("r8", good), run("r16", same), run("poor", random_passes(0.2, seed=1))])
    assert [table.title for table in tables] == ["What each variant costs", "What each variant reaches", "Told apart?"]
    verdicts = {(row[0], row[1]): row[5] for row in table.rows}
    assert verdicts == {("r8", "r16"): "within noise", ("r8", "poor"): "differ", ("r16", "poor"): "differ"}
    tasks_needed = {(row[0], row[1]): row[6] for row in table.rows}
    assert tasks_needed["r8", "r16"] > 1000 > tasks_needed["r8", "poor"]
    assert "2 of 3 pairs" in table.note


def test_the_number_of_threads_stands_beside_the_scores():
    one = run("r8", random_passes(0.5))
    evidence = one.measurement.evidence.model_copy(update={"threads": 2})
    measured = one.measurement.model_copy(update={"evidence": evidence})
    (_, scores), _ = comparison([SweepRun("r8", SETTINGS, one.forecast, measured, one.results)])
    assert "Threads: 2; another number rounds otherwise." in scores.note


def test_noise_is_called_noise():
    _, table = pairs([run("r8", random_passes(0.5)), run("r16", random_passes(0.5))])
    assert "within noise" in table.note
    assert table.rows[0][2:] == [0.0, 0.0, 0.0, "within noise", None]


def test_runs_over_other_tasks_are_not_paired():
    _, table = pairs([run("a", random_passes(0.5)), run("b", random_passes(0.6), [f"other/{n}" for n in range(200)])])
    assert table.rows[0][5] == "other tasks, not compared"
    assert isinstance(table.rows[0][6], int)


def test_without_tests_the_share_that_parses_is_compared():
    first = run("a", [], parses=[1] * 150 + [0] * 50)
    second = run("b", [], parses=[1] * 100 + [0] * 100)
    for each in (first, second):
        del each.results["passed"]
    tables, table = pairs([first, second])
    assert "parses" in tables[1].columns
    assert table.rows[0][2] == pytest.approx(0.25)


def test_costs_stand_beside_their_forecasts():
    (costs, _), _ = comparison([run("r8", random_passes(0.5))])
    row = dict(zip(costs.columns, costs.rows[0], strict=False))
    assert row["trained"] == measurement().parameters.trainable
    assert row["step ms forecast"] == pytest.approx(1e3 * forecast().step.seconds.expected)
