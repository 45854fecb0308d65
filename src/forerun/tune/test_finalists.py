from types import SimpleNamespace

import optuna
import pytest

from forerun.tune.finalists import TEST, RetrainedFinalist, Start, test_once, top_trials, winner


def finalist(number, searched_score, *scores):
    return RetrainedFinalist(
        number, searched_score, ("a=1",), tuple(Start(n, f"run{n}", s) for n, s in enumerate(scores))
    )


def study_of(*trials):
    study = optuna.create_study(direction="maximize")
    space = {"x": optuna.distributions.FloatDistribution(0, 1)}
    for value, x in trials:
        study.add_trial(optuna.create_trial(value=value, params={"x": x}, distributions=space))
    return study


def test_the_winner_is_chosen_by_new_starting_points_and_not_by_the_search():
    lucky, solid = finalist(3, 0.99, 0.5, 0.6), finalist(7, 0.80, 0.7, 0.72)
    best = winner([lucky, solid])
    assert best is solid
    assert best.score == pytest.approx(0.71)
    assert best.best_start.seed == 1


def test_top_trials_are_different_settings():
    study = study_of((0.5, 0.1), (0.9, 0.2), (0.9, 0.2), (0.8, 0.3), (0.9, 0.4))
    top = top_trials(SimpleNamespace(study=study), 3)
    assert [t.number for t in top] == [1, 4, 3]


def test_the_test_rows_are_scored_once():
    study = study_of((0.5, 0.1))
    study.set_user_attr(TEST, {"metrics": {"macro_f1": 0.5}})
    assert test_once(SimpleNamespace(study=study, recipe=None), []) == {"metrics": {"macro_f1": 0.5}}
