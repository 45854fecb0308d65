"""A cause whose own forecast is given as the measurement comes first; amounts are found again; nothing is fixed text."""

import functools

import pytest

from forerun.api import explain_step, find_device, forecast_settings
from forerun.errors import NotSupported
from forerun.experience import StepObservation
from forerun.settings.load import settings_from
from forerun.verify.explain_miss import explain_miss
from forerun.verify.test_compare import forecast

SETTINGS = settings_from({
    "name": "m", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "precision": "bf16-mixed",
    "batch": {"micro_batch_size": 8, "sequence_length": 1024, "gradient_accumulation_steps": 2},
    "data": {"examples": 64},
})  # fmt: skip


DEVICE = find_device("a100-40gb")


@functools.cache
def forecast_with(overrides):
    return forecast_settings(settings_from(SETTINGS.model_dump(), overrides), DEVICE)


def observed(change, seconds=1.0):
    measured = forecast_with(tuple(change))
    memory = {"allocated": measured.memory.peak_allocated_bytes}
    return StepObservation(seconds=measured.step.seconds.expected * seconds, memory=memory)


def explained(observation):
    def again(alternative):
        if alternative.has_older_loss or alternative.device is not None:
            raise NotSupported("not in this test")
        return forecast_with(alternative.overrides)

    return explain_miss(forecast_with(()), observation, SETTINGS, DEVICE, again)


@pytest.mark.parametrize(
    "change",
    [["model.attention=eager"], ["activation_checkpointing=blocks"], ["precision=fp32"], ["cross_entropy=chunked"]],
    ids=str,
)
def test_the_cause_that_was_at_work_comes_first(change):
    miss = explained(observed(change))
    assert miss.causes[0].change == " ".join(change)
    assert miss.causes[0].is_near
    assert not miss.as_forecast
    assert miss.causes[0].distance == pytest.approx(2**0.5, abs=0.01), "its complexity alone is left"


def test_the_term_that_is_off_by_most_is_the_one_that_the_cause_moves():
    miss = explained(observed(["model.attention=eager"]))
    assert {term.field for term in miss.worst_terms} >= {"activation_bytes"}
    activations = next(term for term in miss.worst_terms if term.field == "activation_bytes")
    assert activations.nearest > activations.forecast


def test_a_step_as_forecast_needs_no_cause():
    miss = explained(observed([]))
    assert miss.as_forecast
    assert miss.causes[0].text == "as forecast"
    assert miss.worst_terms == []


def test_micro_steps_in_the_log_are_recognised():
    assert "micro-steps" in explained(observed([], seconds=0.5)).causes[0].text


@pytest.mark.medium
def test_the_loss_of_older_versions_and_other_boards_are_forecast_too():
    tried = []
    _, miss = explain_step(SETTINGS, DEVICE, observed([], seconds=1.1), on_progress=tried.append)
    assert any("transformers before" in text for text in tried)
    assert any("a100-40gb-pcie" in text for text in tried)
    assert miss.tried >= 4


def test_both_numbers_count():
    """Time alone would be explained by a wait; the memory beside it tells another reading of the counter apart."""
    base = forecast()
    both = StepObservation(seconds=3.0, memory={"peak": 2000})
    miss = explain_miss(base, both)
    assert "whole device" in miss.causes[0].text
    assert miss.causes[0].memory_bytes == pytest.approx(2000)
    assert miss.not_tried


@pytest.mark.parametrize("factor", [1.6, 3.0])
def test_an_amount_is_the_one_that_fits(factor):
    """The forecast of a document has 3 s; a step of `factor` times that is a wait, or a clock, of that size."""
    miss = explain_miss(forecast(), StepObservation(seconds=3.0 * factor, memory={"allocated": 1000}))
    nearest = miss.causes[0]
    assert nearest.step_seconds == pytest.approx(3.0 * factor, rel=0.15)
    assert 3.0 < nearest.step_seconds < 3.0 * factor, "it is drawn towards what is usual"
    assert miss.worst_terms[0].field.endswith("_seconds")
