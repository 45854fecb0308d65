"""A run that stopped early is compared with the forecast of the steps it made, and says that it stopped."""

import pytest

from forerun.verify.compare import verify
from forerun.verify.early_stop import early_stop_sentence, until_it_stopped
from forerun.verify.test_compare import forecast, measurement

SAID = "stopped early after step 20 of 300: validation_mcc was not better for 1 evaluation"


def stopped(**figures):
    run = measurement(steps=20, **figures)
    return run.model_copy(update={"run": run.run.model_copy(update={"stopped_early": SAID})})


def test_a_run_that_stopped_early_is_no_fault_of_the_forecast():
    verdict = verify("r", forecast(steps=300), stopped())
    rows = {row.field: row for row in verdict.rows}
    assert verdict.first_cause == ""
    assert verdict.causes == []
    assert not {"total_steps", "checkpoints_written"} & set(rows)
    assert rows["run.seconds"].relative_error == pytest.approx(0)
    assert rows["run.seconds"].inside_range
    assert rows["run.training_seconds"].forecast == pytest.approx(60)
    assert early_stop_sentence(verdict) == f"The run {SAID}. Its time is compared up to there."


def test_a_slow_step_is_still_a_fault():
    verdict = verify("r", forecast(steps=300), stopped(backward=8.0))
    assert "backward" in verdict.first_cause
    assert {row.field: row for row in verdict.rows}["run.seconds"].inside_range is False


def test_fewer_steps_without_a_stop_are_one_too():
    verdict = verify("r", forecast(steps=300), measurement(steps=20))
    assert "20 steps, forecast 300" in verdict.first_cause
    assert early_stop_sentence(verdict) == ""


def test_what_is_done_once_is_whole_and_what_is_done_between_epochs_is_in_proportion():
    planned = forecast(steps=300)
    phases = planned.run.phases.model_copy(
        update={"startup_seconds": 7.0, "evaluation_seconds": 40.0, "checkpoint_seconds": 6.0}
    )
    planned = planned.model_copy(
        update={
            "run": planned.run.model_copy(update={"phases": phases, "checkpoints_written": 3, "cost": 953.0}),
            "detail": planned.detail.model_copy(update={"final_evaluation_seconds": 10.0}),
        }
    )
    own = until_it_stopped(planned, stopped()).run
    assert own.phases.startup_seconds == 7
    assert own.phases.training_seconds == pytest.approx(60)
    assert own.phases.evaluation_seconds == pytest.approx(10 + 30 / 15)
    assert own.phases.checkpoint_seconds == pytest.approx(2)
    assert own.cost == pytest.approx(81)
    assert until_it_stopped(planned, measurement(steps=300)) is planned
