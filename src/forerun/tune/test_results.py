import optuna
import pytest

from forerun.report.html import render_results
from forerun.tune import results
from forerun.tune.finalists import RetrainedFinalist, Start
from forerun.tune.study_run import StudySettings, reproduce

SPACE = {
    "rate": optuna.distributions.FloatDistribution(0, 1),
    "loss": optuna.distributions.CategoricalDistribution(("a", "b")),
}


def notes(price, took, outcome="finished"):
    return {
        "price": {"optimistic": 0.9 * price, "expected": price, "conservative": 1.1 * price}, "wall_seconds": took,
        "outcome": outcome, "standard_error": 0.02, "pricing_seconds": 0.5, "traced": price > 60,
    }  # fmt: skip


@pytest.fixture
def study():
    study = optuna.create_study(direction="maximize")
    for number in range(10):
        study.add_trial(
            optuna.create_trial(
                value=0.5 + 0.04 * number, params={"rate": number / 10, "loss": "ab"[number % 2]}, distributions=SPACE,
                user_attrs=notes(50 + 5 * number, 60),
            )
        )  # fmt: skip
    study.add_trial(
        optuna.create_trial(
            state=optuna.trial.TrialState.PRUNED, params={"rate": 0.9, "loss": "a"}, distributions=SPACE,
            user_attrs={"outcome": "refused", "reason": "needs 20 GiB", "price": notes(9, 9)["price"]},
        )
    )  # fmt: skip
    return study


def finalist(trial, *scores):
    return RetrainedFinalist(
        trial,
        0.9,
        ("recipe.judged_on=selection", "x.y=[a b]"),
        tuple(Start(n, "r", s) for n, s in enumerate(scores, 1)),
    )


TEST = {
    "metric": "macro_f1", "rows": 100,
    "metrics": {"macro_f1": 0.8, "mcc": 0.6, "tf-idf.macro_f1": 0.7, "tf-idf.mcc": 0.4},
    "over_baselines": {"tf-idf": [0.1, 0.05, 0.15]},
    "finalists": {"9": {"scores": [0.8, 0.78], "below_winner": [0.0, 0.0, 0.0]},
                  "8": {"scores": [0.77, 0.75], "below_winner": [0.03, 0.01, 0.05]}},
}  # fmt: skip


def test_errors_of_prices_are_signed_and_refused_trials_cost_nothing(study):
    errors = results.price_errors(study)
    assert len(errors) == 10
    assert errors[0] == pytest.approx(50 / 60 - 1)
    values = {row[0]: row[1] for row in results.price_table(study).rows}
    assert values["refused before they ran"] == 1
    assert values["inside the range"] == "3 of 10"


def test_noise_comes_from_starting_points_where_there_are_some(study):
    assert results.noise_of(study, [])[0] == pytest.approx(0.02)
    bare = optuna.create_study(direction="maximize")
    bare.add_trial(optuna.create_trial(value=0.5, user_attrs={"standard_error": 0.0}))
    assert results.noise_of(bare, [])[1].startswith("not measured")
    value, source = results.noise_of(study, [finalist(9, 0.7, 0.8), finalist(8, 0.75, 0.75)])
    assert value == pytest.approx(0.05)
    assert "starting points" in source


def test_the_front_has_what_nothing_beats_in_both():
    study = optuna.create_study(direction="maximize")
    for score, took in ((0.5, 60), (0.7, 120), (0.6, 180), (0.8, 240)):
        study.add_trial(optuna.create_trial(value=score, user_attrs=notes(1, took)))
    front = results.pareto_curve(study).series[0]
    assert (front.x, front.y) == ([1, 2, 4], [0.5, 0.7, 0.8])


def test_a_best_score_outside_of_luck_is_said(study):
    assert "above that band" in results.history_curve(study, 0.001, "s", {"tf-idf": 0.5}).note
    assert "inside that band" in results.history_curve(study, 0.5, "s", {}).note
    assert "not drawn" in results.history_curve(study, 0.0, "not measured", {}).note


def test_everything_is_drawn_on_a_page(study):
    finalists = [finalist(9, 0.7, 0.8), finalist(8, 0.75, 0.75)]
    tables = [
        results.progress_table(study, 12, 100.0, 0.01), results.trials_table(study), results.price_table(study),
        results.importance_table(results.study_importances(study, list(SPACE)), 10),
        results.finalists_table(finalists, TEST), results.test_table(TEST),
    ]  # fmt: skip
    curves = [results.history_curve(study, 0.01, "s", {"tf-idf": 0.5}), results.pareto_curve(study)]
    page = render_results("t", "n", tables, curves)
    for words in (
        "luck alone",
        "Score against minutes",
        "Which settings mattered",
        "-0.030 (-0.050 to -0.010)",
        "winner&#39;s best start",
        "test, mean",
    ):
        assert words in page


def test_the_command_of_the_winner_is_judged_on_the_test_rows():
    plan = StudySettings(target="text-classifier", overrides=("data.examples=5",))
    command = reproduce(plan, finalist(9, 0.7, 0.8))
    assert command == "forerun run text-classifier --set data.examples=5 --set 'x.y=[a b]' --set seed=2"
