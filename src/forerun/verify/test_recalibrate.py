"""What a run teaches: the next forecast of the same settings is nearer, of others less so, and nothing counts twice."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.forecasting.made_with import made_with
from forerun.ledger.store import OutcomeRow
from forerun.records import RunPhases
from forerun.settings.load import settings_from
from forerun.verify.recalibrate import PRIOR_SPREAD, RUN_SPREAD
from forerun.verify.recalibrate import recalibrate as recalibrate_target
from forerun.verify.test_compare import forecast, measurement

SETTINGS = settings_from(
    {"name": "r", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "data": {"examples": 100}}
)


def recalibrate(settings, history):
    return recalibrate_target(settings.model_dump(mode="json"), settings.hash, history)


EXPECTED = 3.0
"""Seconds of a step that the made-up forecasts say."""


def outcome(ratio, settings=SETTINGS, applied=1.0, versions=None):
    """A run that took `ratio` times what was forecast before a correction of `applied`."""
    past_forecast = forecast(applied * 1.0, applied * 2.0)
    detail = past_forecast.detail.model_copy(
        update={"corrected_by": {"step": applied}, "versions": made_with() if versions is None else versions}
    )
    past_forecast = past_forecast.model_copy(update={"settings_hash": settings.hash, "detail": detail})
    return OutcomeRow("run", settings.model_dump(mode="json"), past_forecast, measurement(ratio * 1.0, ratio * 2.0))


def other(**sections):
    return settings_from({**SETTINGS.model_dump(mode="json"), **sections})


def test_no_runs_teach_nothing():
    correction = recalibrate(SETTINGS, [])
    assert correction.terms == {}
    assert correction.factor("step", EXPECTED) == 1
    assert correction.said == ""


@given(st.floats(0.4, 2.5), st.integers(1, 6))
def test_the_factor_lies_between_one_and_what_was_seen(ratio, runs):
    correction = recalibrate(SETTINGS, [outcome(ratio)] * runs)
    low, high = sorted((1.0, ratio))
    assert low - 1e-9 <= correction.factor("step", EXPECTED) <= high + 1e-9
    assert correction.terms["step"].runs == runs


def test_one_run_of_the_same_settings_takes_most_of_the_error():
    assert recalibrate(SETTINGS, [outcome(1.3)]).factor("step", EXPECTED) == pytest.approx(1.225, abs=0.01)


def test_a_run_beside_others_says_little():
    """At 77 % of the processors in other hands a step three times as long is no pace of this machine."""
    row = outcome(3.0)

    def beside(share):
        evidence = row.measurement.evidence.model_copy(update={"other_processes_share": share})
        return replace(row, measurement=row.measurement.model_copy(update={"evidence": evidence}))

    factors = [recalibrate(SETTINGS, [beside(share)]).factor("step", EXPECTED) for share in (0.0, 0.1, 0.4, 0.77, 1.0)]
    assert factors == sorted(factors, reverse=True)
    assert factors[0] == recalibrate(SETTINGS, [row]).factor("step", EXPECTED) > 2
    assert factors[3] < 1.05


@pytest.mark.parametrize("waiting", [0.0, 0.3, 0.6, 0.75])
def test_what_others_cannot_explain_is_learned(waiting):
    """A cost of 300 times the step is no load of others: at least half of its logarithm is known after one run."""
    row = outcome(300.0)
    load = {"other_processes_share": 0.9, "waiting_share": waiting}
    evidence = row.measurement.evidence.model_copy(update=load)
    row = replace(row, measurement=row.measurement.model_copy(update={"evidence": evidence}))
    factor = recalibrate(SETTINGS, [row]).factor("step", EXPECTED)
    assert math.sqrt(300) < factor < 300


def test_seconds_of_another_number_of_threads_are_not_the_time_itself(monkeypatch):
    row = outcome(1.0)
    evidence = row.measurement.evidence.model_copy(update={"threads": 2})
    row = replace(row, measurement=row.measurement.model_copy(update={"evidence": evidence}))
    for threads, seconds in ((2, True), (1, False)):
        monkeypatch.setattr("forerun.verify.recalibrate.read_threads", lambda threads=threads: threads)
        term = recalibrate(SETTINGS, [row]).terms["step"]
        assert (term.measured_seconds is not None, term.trust > 0) == (seconds, seconds)


def test_more_runs_are_surer():
    spreads = [recalibrate(SETTINGS, [outcome(1.2)] * n).terms["step"].spread for n in (1, 2, 8)]
    assert spreads == sorted(spreads, reverse=True)
    assert RUN_SPREAD["step"] < spreads[-1] < spreads[0] < math.hypot(PRIOR_SPREAD["step"], RUN_SPREAD["step"])


def test_the_less_alike_the_less_it_counts():
    batch = {**SETTINGS.batch.model_dump(), "micro_batch_size": 8}
    others = (
        SETTINGS,
        other(batch=batch),
        other(precision="bf16-true"),
        other(model={"name": "tiny-opt"}),
        other(workload="masked-lm", model={"name": "tiny-bert"}),
    )
    factors = [recalibrate(SETTINGS, [outcome(1.5, settings)]).factor("step", EXPECTED) for settings in others]
    assert factors == sorted(factors, reverse=True)
    assert len(set(factors)) == len(factors)
    assert factors[-1] > 1


def test_any_number_of_other_runs_outvotes_no_run_of_the_same_step_beyond_what_they_have_in_common():
    batch = {**SETTINGS.batch.model_dump(), "micro_batch_size": 8}
    others = [outcome(1.8, other(batch=batch))]
    few, many = (recalibrate(SETTINGS, [*others * n, outcome(1.0)]).terms["step"].trust for n in (9, 900))
    assert 0.25 < many < few


def test_what_other_code_forecast_or_another_pytorch_ran_counts_less():
    batch = {**SETTINGS.batch.model_dump(), "micro_batch_size": 8}
    for past_settings in (SETTINGS, other(batch=batch)):
        for changed in ({"code": "0"}, {"torch": "2.0"}):
            old = [outcome(1.5, past_settings, versions=made_with() | changed)]
            new = [outcome(1.5, past_settings)]
            before, now = (recalibrate(SETTINGS, runs).factor("step", EXPECTED) for runs in (old, new))
            assert 1 < before < now
    stale = [outcome(1.8, other(batch=batch), versions={})] * 9
    assert recalibrate(SETTINGS, [*stale, outcome(1.0)]).factor("step", EXPECTED) < 1.15


def test_what_was_corrected_before_is_not_corrected_twice():
    for past_settings in (SETTINGS, other(batch={**SETTINGS.batch.model_dump(), "micro_batch_size": 8})):
        again, once = (recalibrate(SETTINGS, [outcome(1.3, past_settings, applied)]) for applied in (1.25, 1.0))
        assert again.factor("step", EXPECTED) == pytest.approx(once.factor("step", EXPECTED))


def test_the_same_settings_tell_the_time_itself():
    """A forecast that changes by noise does not take the corrected one with it."""
    correction = recalibrate(SETTINGS, [outcome(1.0)] * 20)
    assert 3.6 * correction.factor("step", 3.6) == pytest.approx(3.0, rel=0.01)


@pytest.mark.parametrize("is_same", [True, False])
def test_one_stray_among_others_hardly_counts(is_same):
    """A forecast that was 16 times too long because others used the processors while it was made."""
    past_settings = SETTINGS if is_same else other(batch={**SETTINGS.batch.model_dump(), "micro_batch_size": 8})
    usual = [outcome(1.1, past_settings)] * 4
    factor = recalibrate(SETTINGS, usual).factor("step", EXPECTED)
    stray = recalibrate(SETTINGS, [*usual, outcome(1 / 16, past_settings)]).factor("step", EXPECTED)
    assert stray == pytest.approx(factor, abs=0.07)
    two = recalibrate(SETTINGS, [outcome(1.1, past_settings), outcome(1 / 16, past_settings)]).factor("step", EXPECTED)
    assert two < 0.7, "of two nobody knows which"


def test_seed_epochs_rates_and_wrong_labels_do_not_make_it_another_step():
    noise = {"examples": 100, "contamination": {"rate": 0.5}}
    wrong = other(workload="arithmetic", data=noise)
    clean = other(workload="arithmetic", data={"examples": 100})
    assert recalibrate(clean, [outcome(1.2, wrong)]).said.endswith("1 with the same step")
    same = other(seed=7, schedule={"epochs": 9}, optimizer={"learning_rate": 0.1}, data={"examples": 900})
    assert (
        recalibrate(SETTINGS, [outcome(1.3, same)]).terms["step"] == recalibrate(SETTINGS, [outcome(1.3)]).terms["step"]
    )
    thawing = other(schedule={"epochs": 3, "frozen_encoder_epochs": 1})
    assert recalibrate(SETTINGS, [outcome(1.3, thawing)]).terms["step"].measured_seconds is None


def run_with_evaluation(ratio, settings):
    """A run whose evaluation took `ratio` times its forecast of 10 s."""
    past_run, evaluation_seconds = outcome(1.0, settings), 10.0 * ratio
    run = past_run.forecast.run.model_copy(update={"phases": RunPhases(training_seconds=300, evaluation_seconds=10.0)})
    took = past_run.measurement.run.model_copy(
        update={"phases": RunPhases(training_seconds=300, evaluation_seconds=evaluation_seconds)}
    )
    return OutcomeRow(
        "run", past_run.settings, past_run.forecast.model_copy(update={"run": run}),
        past_run.measurement.model_copy(update={"run": took}),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("new_tokens", "model", "low", "high"),
    [(0, "tiny-llama", 0.4, 0.6), (0, "tiny-opt", 0.4, 0.6), (96, "tiny-llama", 0.4, 0.6), (96, "tiny-opt", 0.8, 1.0)],
)
def test_answers_of_one_model_say_little_of_how_long_those_of_another_are(new_tokens, model, low, high):
    target = other(evaluation={"examples": 8, "new_tokens": new_tokens})
    answered = settings_from({**target.model_dump(mode="json"), "model": {"name": model}, "seed": 1})
    correction = recalibrate(target, [run_with_evaluation(0.4, answered)] * 4)
    assert low < correction.factor("evaluation", 10.0) < high


def test_terms_next_to_nothing_are_left_out():
    assert set(recalibrate(SETTINGS, [outcome(1.3)]).terms) == {"step"}
