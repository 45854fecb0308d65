"""What is left: right for even steps, inside its range for uneven ones, and judged by what it took."""

import random

import pytest

from forerun.records import StepPhases, StepReport
from forerun.runs.eta import TimeLeft
from forerun.verify.test_compare import forecast

TOTAL = 100


def report(number, seconds):
    return StepReport(
        step=number, epoch=0, loss=1, learning_rate=1e-3, step_seconds=seconds, phases=StepPhases(), samples=1, tokens=1,
        padded_tokens=1,
    )  # fmt: skip


def played(seconds, own_forecast=None, beside=0.0):
    """Each step's range, and the object, over a run whose steps take `seconds`, and as much more `beside` each."""
    now = [0.0]
    remaining = TimeLeft(own_forecast or forecast(), TOTAL, clock=lambda: now[0])
    ranges = []
    for number, duration in enumerate(seconds, start=1):
        now[0] += duration + beside
        ranges.append(remaining.after(report(number, duration)))
    return ranges, remaining


def test_even_steps_as_forecast():
    ranges, remaining = played([3.0] * TOTAL)
    assert ranges[0].expected == pytest.approx(99 * 3.0)
    assert ranges[49].expected == pytest.approx(150)
    assert ranges[-1].expected == ranges[-1].conservative == 0
    assert remaining.half_way_error == pytest.approx(0)


def test_a_wrong_forecast_is_soon_forgotten():
    ranges, remaining = played([6.0] * TOTAL)
    assert ranges[0].expected < 0.7 * 99 * 6.0, "the forecast said 3 s"
    assert ranges[49].expected == pytest.approx(300, rel=0.05)
    assert abs(remaining.half_way_error) < 0.05


def test_the_range_holds_for_uneven_steps():
    random.seed(0)
    inside = 0
    for _ in range(40):
        steps = [random.lognormvariate(1.0, 0.4) for _ in range(TOTAL)]
        ranges, _ = played(steps)
        inside += ranges[29].optimistic <= sum(steps[30:]) <= ranges[29].conservative
    assert inside >= 30, "an 80 % range holds 32 of 40 in the mean; 29 or fewer happen once in eight"


def test_the_range_narrows():
    random.seed(1)
    ranges, _ = played([random.lognormvariate(1.0, 0.3) for _ in range(TOTAL)])
    widths = [r.conservative - r.optimistic for r in ranges]
    assert widths[5] > widths[50] > widths[90] > widths[-1] == 0


def test_what_is_scored_after_training_is_not_left_of_it():
    plain = forecast()
    phases = plain.run.phases.model_copy(update={"evaluation_seconds": 700.0, "checkpoint_seconds": 0.0})
    run = plain.run.model_copy(update={"phases": phases})
    detail = plain.detail.model_copy(update={"final_evaluation_seconds": 600.0})
    ranges, remaining = played([3.0] * TOTAL, plain.model_copy(update={"run": run, "detail": detail}), beside=1.0)
    assert ranges[0].expected == pytest.approx(99 * (3.0 + 1.0))
    assert ranges[-2].expected == pytest.approx(3.0 + 1.0)
    assert remaining.half_way_error == pytest.approx(0)


def test_a_run_resumed_late_is_not_judged():
    remaining = TimeLeft(forecast(), TOTAL, clock=lambda: 0.0)
    for number in range(80, TOTAL + 1):
        remaining.after(report(number, 1.0))
    assert remaining.half_way_error is None
