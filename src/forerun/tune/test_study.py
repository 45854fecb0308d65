import os
import subprocess
import sys
import time

import optuna
import psutil
import pytest
from optuna.trial import TrialState

from forerun.errors import InvalidSettings
from forerun.tune import study as studies

FIXED = {"target": "t", "seed": 0, "metric": "macro_f1"}


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/deep/tune.sqlite"


def join_study(url, **changes):
    return studies.open_study(url, "one", {**FIXED, **changes}, None)


def test_a_study_is_made_with_its_folder_and_joined(url):
    join_study(url)
    assert studies.open_study(url, "one", None, None).user_attrs[studies.FIXED] == FIXED


@pytest.mark.parametrize("key", FIXED)
def test_seed_metric_and_target_cannot_change_within_a_study(url, key):
    join_study(url)
    with pytest.raises(InvalidSettings, match=f"different: {key}"):
        join_study(url, **{key: "other"})


@pytest.mark.parametrize(
    "wrong", ["nothing://x", "sqlite:////proc/none/x.sqlite", "postgresql+psycopg://localhost:1/x"]
)
def test_a_database_that_is_not_there_is_one_clear_error(wrong):
    with pytest.raises(InvalidSettings, match="--storage"):
        studies.open_study(wrong, "one", FIXED, None)


def test_trials_of_living_workers_are_left_alone_and_others_taken_over(url):
    study = join_study(url)
    mine, left = study.ask(), study.ask()
    studies.own(mine)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    created = psutil.Process(dead.pid).create_time()
    dead.wait()
    left.set_user_attr("owner", vars(studies.Owner(studies.Owner.here().host, dead.pid, created)))
    assert [t.number for t in studies.waiting_trials(study)] == [left.number]
    claimed = studies.claim(study, left.number)
    assert claimed is not None
    assert studies.waiting_trials(study) == []


def test_a_worker_of_another_machine_is_gone_when_it_was_silent_for_long():
    other = studies.Owner("elsewhere", os.getpid(), 0.0)
    assert other.is_alive(time.time() - 1)
    assert not other.is_alive(time.time() - studies.SILENT_SECONDS - 1)


def test_a_process_number_that_was_given_again_is_another_process():
    here = studies.Owner.here()
    assert here.is_alive(0.0)
    assert not studies.Owner(here.host, here.pid, here.created - 100).is_alive(0.0)


def test_a_trial_that_was_only_just_begun_is_waited_for(url):
    study = join_study(url)
    trial = study.ask()
    assert not studies.is_settled(study)
    studies.own(trial)
    assert studies.is_settled(study)


@pytest.mark.parametrize(
    ("outcome", "score", "state"),
    [
        ("finished", 0.5, TrialState.COMPLETE),
        ("pruned", None, TrialState.PRUNED),
        ("refused", None, TrialState.PRUNED),
        ("out of memory", None, TrialState.PRUNED),
        ("failed", None, TrialState.FAIL),
    ],
)
def test_ends(url, outcome, score, state):
    study = join_study(url)
    studies.tell(study, study.ask(), score, outcome, "why")
    (trial,) = study.trials
    assert (trial.state, trial.user_attrs["outcome"], trial.value) == (state, outcome, score)
    assert len(studies.finished(study)) == (outcome in ("finished", "pruned", "out of memory"))
    assert len(studies.completed(study)) == (outcome == "finished")


@pytest.mark.parametrize("name", ["median", "hyperband", "none"])
def test_pruners(name):
    assert isinstance(studies.make_pruner(name), optuna.pruners.BasePruner)


def test_studies_are_compared_by_what_they_tried(url):
    study = join_study(url)
    studies.tell(study, study.ask(), 0.5, "finished")
    one = study.trials
    assert studies.same_trials(one, study.trials)
    studies.tell(study, study.ask(), 0.6, "finished")
    assert not studies.same_trials(one, study.trials)
