"""What a database of studies holds can be read by whoever did not make it."""

import optuna
import pytest

from forerun.errors import InvalidSettings
from forerun.tune import studies
from forerun.tune.luck import LEAST_TRIALS
from forerun.tune.studies import studies_in


def test_trials_and_what_mattered(tmp_path, monkeypatch):
    monkeypatch.setenv("FORERUN_TRACES", str(tmp_path / "kept"))
    url = f"sqlite:///{tmp_path / 't.sqlite'}"
    assert studies_in(url) == []
    assert not (tmp_path / "t.sqlite").exists(), "looking makes nothing"
    study = optuna.create_study(study_name="s", storage=url, direction="maximize")
    for n in range(LEAST_TRIALS):
        study.enqueue_trial({"matters": n / 10, "idle": n % 2})
    study.optimize(
        lambda trial: trial.suggest_float("matters", 0, 1) + 0 * trial.suggest_int("idle", 0, 1), n_trials=LEAST_TRIALS
    )
    (one,) = studies_in(url)
    assert [trial["score"] for trial in one["trials"]] == [n / 10 for n in range(LEAST_TRIALS)]
    assert [row["name"] for row in one["importances"]] == ["matters", "idle"]
    monkeypatch.setattr(studies, "study_importances", lambda study, names: [])
    assert studies_in(url) == [one], "kept, as no trial came since"
    study.enqueue_trial({"matters": 1.0, "idle": 0})
    study.optimize(lambda trial: trial.suggest_float("matters", 0, 1) + trial.suggest_int("idle", 0, 1), n_trials=1)
    assert studies_in(url)[0]["importances"] == [], "asked anew"


def test_what_is_no_database_is_refused(tmp_path):
    (tmp_path / "t.sqlite").write_text("no database, " * 100)
    with pytest.raises(InvalidSettings, match="--storage"):
        studies_in(f"sqlite:///{tmp_path / 't.sqlite'}")
