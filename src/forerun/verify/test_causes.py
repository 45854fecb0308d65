"""Each kind of evidence becomes a cause with its seconds, on made-up runs whose answers are known."""

import pytest

from forerun.records import RunEvidence, RunPhases, StepPhases
from forerun.verify.causes import causes
from forerun.verify.test_compare import forecast, measurement


def slow(evidence=None, data=0.0, checkpoint=0.0):
    """A run of 100 steps, forecast 3 s each, that took 4 s each."""
    base = measurement(2.0, 2.0)
    phases = StepPhases(forward_seconds=2.0 - data, backward_seconds=2.0, data_seconds=data)
    run = RunPhases(training_seconds=400, checkpoint_seconds=checkpoint)
    return base.model_copy(
        update={
            "evidence": evidence or RunEvidence(),
            "step": base.step.model_copy(update={"phases": phases}),
            "run": base.run.model_copy(update={"phases": run, "seconds": 400 + checkpoint}),
        }
    )


def planned(tokens):
    original = forecast()
    return original.model_copy(update={"detail": original.detail.model_copy(update={"padded_tokens_per_step": tokens})})


def test_nothing_recorded_explains_nothing():
    assert causes(forecast(), slow()) == []


@pytest.mark.parametrize(
    ("evidence", "name", "seconds", "words"),
    [
        (
            RunEvidence(padded_tokens_per_step=1300),
            "sequence lengths",
            90,
            "1,300 padded tokens per step, planned 1,000",
        ),
        (RunEvidence(other_processes_share=0.2), "shared machine", 80, "other processes used 20.0 %"),
        (
            RunEvidence(out_of_memory_steps=2, out_of_memory_seconds=30),
            "out of memory",
            30,
            "2 steps ran out of memory",
        ),
        (RunEvidence(stolen_share=0.1), "shared processor", 40, "hypervisor"),
        (RunEvidence(clock_share=0.8, throttled_share=0.9), "clock", 80, "power or heat"),
    ],
)
def test_a_cause_has_its_seconds(evidence, name, seconds, words):
    (cause,) = causes(planned(1000), slow(evidence))
    assert cause.name == name
    assert cause.seconds == pytest.approx(seconds)
    assert words in cause.said


def test_waiting_for_data_and_the_disk():
    result = causes(forecast(), slow(data=0.5, checkpoint=30))
    assert [(c.name, round(c.seconds)) for c in result] == [("data", 50), ("checkpoint", 30)]
    assert "MB/s" in result[1].said


def test_what_would_have_made_it_quicker_is_no_cause_of_its_being_slow():
    assert causes(planned(1000), slow(RunEvidence(padded_tokens_per_step=700))) == []
