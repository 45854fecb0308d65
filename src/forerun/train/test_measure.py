"""Seconds of phases add up, also where one is inside another."""

import time

import pytest

from forerun.trace import Phase
from forerun.train.measure import PhaseTimer

SLEEP = 0.02


def test_a_phase_inside_another_is_not_counted_twice():
    """The passes of a pipeline are phases inside that of its schedule; a forward pass in it is one of both."""
    timer, start = PhaseTimer("cpu"), time.perf_counter()
    with timer.phase(Phase.FORWARD):
        with timer.phase(Phase.FORWARD):
            time.sleep(SLEEP)
        with timer.phase(Phase.BACKWARD):
            time.sleep(2 * SLEEP)
        time.sleep(SLEEP)
    total = time.perf_counter() - start
    phases = timer.take(total)
    assert phases.backward_seconds >= 2 * SLEEP
    assert phases.forward_seconds >= 2 * SLEEP
    assert phases.forward_seconds + phases.backward_seconds == pytest.approx(total, rel=0.05)
