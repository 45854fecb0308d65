"""Scenarios in order, by what is known of the step, narrower with experience; a run's narrower than its phases' sum."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.clock.priors import PriorCosts
from forerun.experience import Correction, CorrectionTerm
from forerun.forecasting.ranges import (
    PROGRAM,
    SETTINGS,
    group_of,
    in_shares_of,
    run_range,
    shares,
    shares_of,
    spread,
    step_range,
    table,
)
from forerun.hardware.catalogue import device
from forerun.records import Range, RunPhases
from forerun.trace import Call, Trace

KNOWN = Correction(terms={"step": CorrectionTerm(factor=1.1, spread=0.05, runs=3)})
SECONDS = st.floats(0, 1e6)
SAME_HOST = (1.0, 1.0)
NOTHING = Range(optimistic=0.0, expected=0.0, conservative=0.0)


@dataclass
class HostCosts:
    """Operators timed on a CPU."""

    description: str = "timed"
    evidence: str = "calibrated"
    is_host: bool = True

    def device_seconds(self, call: Call) -> float:
        """Nothing."""
        return 0.0

    host_seconds = device_seconds


@pytest.mark.parametrize("group", table())
def test_a_step_is_inside_its_range(group):
    band = spread(2.0, *shares(group))
    assert band.optimistic < band.expected == 2.0 < band.conservative


def test_known_runs_narrow_a_step():
    low, high = shares("other-gpu", KNOWN)
    assert shares("other-gpu")[0] < low < 1 < high < shares("other-gpu")[1]


def trace_with(name: str, issuer: str = "eager", world_size: int = 1) -> Trace:
    call = Call(name, (), (), (), (), 0, 0, 0, issuer=issuer)
    return Trace(calls=[call], world_size=world_size)


def test_what_misses_most_decides_the_group():
    known, other = PriorCosts(device("a100-80gb")), PriorCosts(device("rtx-a5500"))
    assert group_of(trace_with("aten.mm.default"), known, PROGRAM) == "program"
    assert group_of(trace_with("aten.mm.default"), known, SETTINGS) == "settings"
    assert group_of(trace_with("aten.mm.default"), other, PROGRAM) == "program+other-gpu"
    assert group_of(trace_with("aten.mm.default"), other, SETTINGS) == "settings+other-gpu"
    assert group_of(trace_with("aten.convolution.default"), other, PROGRAM) == "images"
    assert group_of(trace_with("aten.convolution.default", "compiled"), known, PROGRAM) == "compiled"
    assert group_of(trace_with("aten.mm.default", "compiled", 8), known, SETTINGS) == "several-gpus"
    assert group_of(trace_with("aten.mm.default"), HostCosts(), SETTINGS) == "calibrated"


@pytest.mark.parametrize("group", table())
def test_a_gpu_that_nobody_measured_never_narrows_a_range(group):
    low, high = shares(f"{group}+other-gpu")
    assert low <= shares(group)[0]
    assert high >= shares(group)[1]


def test_a_settings_file_says_less_than_the_program():
    assert shares(SETTINGS)[1] - shares(SETTINGS)[0] >= shares(PROGRAM)[1] - shares(PROGRAM)[0]


@given(SECONDS, SECONDS, SECONDS, SECONDS)
def test_a_run_is_inside_its_range(startup, training, evaluation, checkpoint):
    phases = RunPhases(
        startup_seconds=startup, training_seconds=training, evaluation_seconds=evaluation, checkpoint_seconds=checkpoint
    )
    band = run_range(phases, "calibrated", None, step_range(1.0, "calibrated", SAME_HOST))
    assert 0 <= band.optimistic <= band.expected <= band.conservative
    assert band.expected == pytest.approx(sum(phases.model_dump().values()))


def test_phases_do_not_all_miss_the_same_way():
    mixed = run_range(RunPhases(startup_seconds=100, checkpoint_seconds=100), "calibrated", None, NOTHING)
    alone = run_range(RunPhases(startup_seconds=200), "calibrated", None, NOTHING)
    assert mixed.conservative < alone.conservative


def test_a_step_may_be_as_slow_as_a_slow_host_makes_it():
    low, high = shares(PROGRAM)
    band = step_range(2.0, PROGRAM, (0.5, 1.9))
    assert (band.optimistic, band.conservative) == (pytest.approx(1.0), pytest.approx(3.8))
    assert shares_of(step_range(2.0, PROGRAM, SAME_HOST)) == (pytest.approx(low), pytest.approx(high))


def test_past_runs_say_how_fast_the_host_is():
    correction = Correction(terms={"step": CorrectionTerm(factor=1.0, spread=0.05, runs=4)})
    assert step_range(2.0, PROGRAM, (0.5, 1.9), correction) == step_range(2.0, PROGRAM, SAME_HOST, correction)


def test_a_run_of_steps_alone_misses_as_its_step():
    step = step_range(2.0, PROGRAM, (0.5, 1.9))
    assert shares_of(run_range(RunPhases(training_seconds=100), PROGRAM, None, step)) == (
        pytest.approx(shares_of(step)[0]), pytest.approx(shares_of(step)[1]),
    )  # fmt: skip
    assert shares_of(in_shares_of(step, 7.0)) == (pytest.approx(shares_of(step)[0]), pytest.approx(shares_of(step)[1]))
    assert shares_of(NOTHING) == (1.0, 1.0)
