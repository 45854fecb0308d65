"""Scenarios in order, narrower with experience, and of a run narrower than the sum of its phases'."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.experience import Correction, CorrectionTerm
from forerun.forecasting.ranges import TIME_SPREAD, run_range, shares, spread
from forerun.records import RunPhases

KNOWN = Correction(terms={"step": CorrectionTerm(factor=1.1, spread=0.05, runs=3)})
SECONDS = st.floats(0, 1e6)


@pytest.mark.parametrize("evidence", TIME_SPREAD)
def test_a_step_is_inside_its_range(evidence):
    band = spread(2.0, *shares(evidence))
    assert band.optimistic < band.expected == 2.0 < band.conservative


def test_known_runs_narrow_a_step():
    low, high = shares("unseen", KNOWN)
    assert TIME_SPREAD["unseen"][0] < low < 1 < high < TIME_SPREAD["unseen"][1]


@given(SECONDS, SECONDS, SECONDS, SECONDS)
def test_a_run_is_inside_its_range(startup, training, evaluation, checkpoint):
    phases = RunPhases(
        startup_seconds=startup, training_seconds=training, evaluation_seconds=evaluation, checkpoint_seconds=checkpoint
    )
    band = run_range(phases, "calibrated", None)
    assert 0 <= band.optimistic <= band.expected <= band.conservative
    assert band.expected == pytest.approx(sum(phases.model_dump().values()))


def test_phases_do_not_all_miss_the_same_way():
    mixed = run_range(RunPhases(startup_seconds=100, checkpoint_seconds=100), "calibrated", None)
    alone = run_range(RunPhases(startup_seconds=200), "calibrated", None)
    assert mixed.conservative < alone.conservative
