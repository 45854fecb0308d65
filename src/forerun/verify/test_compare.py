"""Errors, criteria and causes on made-up runs whose answers are known."""

import pytest

from forerun.records import (
    Forecast,
    MeasuredMemory,
    MeasuredRun,
    MeasuredStep,
    Measurement,
    MemoryBreakdown,
    MemoryForecast,
    ParameterCounts,
    Range,
    RunEvidence,
    RunForecast,
    RunPhases,
    StepForecast,
    StepPhases,
)  # fmt: skip
from forerun.verify.compare import NOT_TOLD_APART, Criterion, compare, failure_line, first_cause, verify

PARTS = MemoryBreakdown(
    parameter_bytes=100, gradient_bytes=100, optimizer_state_bytes=200, activation_bytes=500, temporary_bytes=50,
    other_bytes=50,
)  # fmt: skip


def band(value):
    return Range(optimistic=value * 0.8, expected=value, conservative=value * 1.25)


def forecast(forward=1.0, backward=2.0, steps=100):
    step = forward + backward
    return Forecast(
        settings_hash="h", gpu="cpu", world_size=1, fits=True, parameters=ParameterCounts(total=25, trainable=25),
        memory=MemoryForecast(
            peak_allocated_bytes=1000, peak_reserved_bytes=1000, device_bytes=band(2000), context_bytes=900,
            capacity_bytes=9000, breakdown=PARTS,
        ),
        step=StepForecast(
            seconds=band(step), phases=StepPhases(forward_seconds=forward, backward_seconds=backward), model_flops=1,
            hardware_flops=1, mfu=0.1, tokens_per_second=10, samples_per_second=1,
        ),
        run=RunForecast(
            steps_per_epoch=50, total_steps=steps, checkpoints_written=1, checkpoint_bytes=300,
            seconds=band(steps * step), phases=RunPhases(training_seconds=steps * step), cost=None,
        ),
    )  # fmt: skip


def measurement(forward=1.0, backward=2.0, steps=100, allocated=1000, metrics=None):
    step = forward + backward
    return Measurement(
        settings_hash="h", gpu="cpu", parameters=ParameterCounts(total=25, trainable=25),
        memory=MeasuredMemory(peak_allocated_bytes=allocated, peak_reserved_bytes=None, device_bytes=2100, method="m"),
        step=MeasuredStep(
            seconds=step, phases=StepPhases(forward_seconds=forward, backward_seconds=backward), tokens_per_second=10,
            samples_per_second=1,
        ),
        run=MeasuredRun(
            steps_per_epoch=50, total_steps=steps, checkpoints_written=1, checkpoint_bytes=300, seconds=steps * step,
            phases=RunPhases(training_seconds=steps * step),
        ),
        metrics=metrics or {},
    )  # fmt: skip


def test_errors_are_signed_and_ranges_checked():
    rows = {row.field: row for row in compare(forecast(), measurement(backward=4.0))}
    assert rows["step.seconds"].relative_error == pytest.approx(-0.4)
    assert rows["step.seconds"].inside_range is False
    assert rows["device_bytes"].inside_range is True
    assert rows["peak_allocated_bytes"].relative_error == 0
    assert "peak_reserved_bytes" not in rows, "what was not measured has no row"


def test_a_good_forecast_has_no_cause():
    assert first_cause(compare(forecast(), measurement())) == ""


def test_the_largest_phase_is_named_with_its_share():
    cause = first_cause(compare(forecast(), measurement(forward=1.5, backward=4.0)))
    assert "backward took 4.00 s, forecast 2.00 s, 80% of the miss" in cause


def test_another_number_of_steps_comes_first():
    assert "90 steps, forecast 100" in first_cause(compare(forecast(), measurement(backward=9.0, steps=90)))


def test_memory_is_named_when_time_is_right():
    assert first_cause(compare(forecast(), measurement(allocated=1300))).startswith("peak_allocated_bytes was")


@pytest.mark.parametrize(
    ("criterion", "passed"),
    [
        (Criterion(name="t", quantity="step.seconds", comparison="error within", bound=0.3), True),
        (Criterion(name="t", quantity="step.seconds", comparison="error within", bound=0.2), False),
        (Criterion(name="a", quantity="auc", comparison="above", bound="length_auc"), True),
        (Criterion(name="a", quantity="auc", comparison="below", bound=0.5), False),
        (Criterion(name="a", quantity="nothing", comparison="above", bound=0.5), False),
        (Criterion(name="a", quantity="auc", comparison="above", bound="nothing"), False),
        (Criterion(name="r", quantity="peak_reserved_bytes", comparison="error within", bound=0.5), False),
    ],
)
def test_criteria(criterion, passed):
    measured = measurement(backward=3.0, metrics={"auc": 0.9, "length_auc": 0.6})
    verdict = verify("run", forecast(), measured, [criterion])
    assert verdict.passed is verdict.criteria[0].passed is passed


def loaded(share, backward):
    evidence = RunEvidence(other_processes_share=share)
    return measurement(backward=backward, metrics=SCORES).model_copy(update={"evidence": evidence})


SCORES = {"auc": 0.75, "tf-idf.auc": 0.78, "majority.auc": 0.5, "slice.short.auc": 0.99}
TIME = Criterion(name="step time was forecast", quantity="step.seconds", comparison="error within", bound=0.3)
MEMORY = Criterion(name="memory was forecast", quantity="peak_allocated_bytes", comparison="error within", bound=0.3)


@pytest.mark.parametrize(
    ("share", "backward", "passed", "judged"),
    [
        (0.76, 9.0, True, False),  # three times as long beside others: says nothing
        (0.24, 9.0, False, True),
        (None, 9.0, False, True),
        (0.76, 0.2, False, True),  # others' load makes nothing faster
        (0.76, 2.2, True, True),
    ],
)
def test_the_load_of_others_is_no_failure_of_a_time(share, backward, passed, judged):
    verdict = verify("run", forecast(), loaded(share, backward), [TIME])
    assert (verdict.passed, verdict.criteria[0].judged) == (passed, judged)
    assert ("others used 76.0 % of the processors" in verdict.criteria[0].rule) == (not judged)
    assert bool(failure_line(verdict.criteria)) == (not passed)


@pytest.mark.parametrize(
    ("waiting", "backward", "judged"),
    [
        (0.41, 4.2, False),  # 1.73 times as long, of which the waits explain 1.69
        (0.0, 4.2, True),  # others had another processor
        (0.05, 3.4, False),
        (0.05, 4.2, True),
    ],
)
def test_a_time_that_waits_for_a_processor_explain_is_not_judged(waiting, backward, judged):
    row = loaded(0.23, backward)
    evidence = row.evidence.model_copy(update={"waiting_share": waiting})
    result = verify("run", forecast(), row.model_copy(update={"evidence": evidence}), [TIME]).criteria[0]
    assert (result.passed, result.judged) == (False, judged)
    assert ("times as long" in result.rule) == (not judged)


def test_the_load_of_others_excuses_no_memory():
    measured = loaded(0.9, 2.0).model_copy(update={"memory": measurement(allocated=9000).memory})
    verdict = verify("run", forecast(), measured, [TIME, MEMORY])
    assert not verdict.passed
    assert failure_line(verdict.criteria).startswith("1 of 2 criteria failed: memory was forecast: 0.889")


def test_the_strongest_baseline_is_named_where_it_wins():
    above = Criterion(name="a", quantity="auc", comparison="above", bound="*.auc")
    verdict = verify("run", forecast(), loaded(0.0, 2.0), [TIME, above])
    assert verdict.better_baseline == "tf-idf is the right choice here: auc 0.780 against the model's 0.750"
    line = "1 of 2 criteria failed: a: 0.750 (auc above tf-idf.auc = 0.780, the best of 2)."
    assert failure_line(verdict.criteria) == line, "the headline and the exit code come from one list"
    one = above.model_copy(update={"bound": "majority.auc"})
    assert verify("run", forecast(), loaded(0.0, 2.0), [one]).better_baseline == "", "no criterion asks for it"
    assert (
        verify("run", forecast(), measurement(metrics={"auc": 0.9, "tf-idf.auc": 0.8}), [above]).better_baseline == ""
    )


BEATS = Criterion(name="beats the strongest baseline", quantity="rmse", comparison="below", bound="*.rmse")
AT_CHANCE = {"rmse": 1.380, "mean.rmse": 1.382, "length.rmse": 1.390}


@pytest.mark.parametrize(
    ("interval", "is_open"),
    [
        ({"rmse.gap.low": -0.008, "rmse.gap.high": 0.005}, True), ({"rmse.gap.low": -0.008, "rmse.gap.high": -0.001}, False),
        ({"rmse.low": 1.37, "rmse.high": 1.39}, True), ({"rmse.low": 1.37, "rmse.high": 1.381}, False), ({}, False),
    ],
)  # fmt: skip
def test_a_score_whose_difference_may_be_none_is_not_said_to_beat_the_baseline(interval, is_open):
    verdict = verify("r", forecast(), measurement(metrics={**AT_CHANCE, **interval}), [BEATS])
    (result,) = verdict.criteria
    assert result.passed
    assert (result.name == NOT_TOLD_APART) == bool(result.open) == is_open
    if is_open:
        assert result.open.startswith("not told apart from mean: the difference is -0.0")
        assert "evaluation.test_examples" in result.open


def test_a_score_below_the_baseline_fails_whatever_its_interval():
    metrics = {"rmse": 1.385, "mean.rmse": 1.382, "rmse.gap.low": -0.01, "rmse.gap.high": 0.02}
    (result,) = verify("r", forecast(), measurement(metrics=metrics), [BEATS]).criteria
    assert (result.passed, result.open, result.name) == (False, "", BEATS.name)
