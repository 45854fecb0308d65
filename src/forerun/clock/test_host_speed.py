"""Steps on slow and fast hosts: small hand-made traces, where every figure can be worked out on paper."""

import pytest

from forerun.clock.host_speed import FAST_HOST, MEASURED_HOST, SLOW_HOST, OtherHost, host_shares
from forerun.clock.test_timeline import FORWARD, FixedCosts, trace_of
from forerun.clock.timeline import replay_clock

STEP = trace_of(*[(*FORWARD, 0)] * 100)


def shares(costs, *traces):
    return host_shares([(trace, replay_clock(trace, costs)) for trace in traces], costs)


def test_a_launch_bound_step_is_as_slow_as_its_host():
    low, high = shares(FixedCosts(host=10.0, device=1.0), STEP)
    assert low == pytest.approx((100 * 10 * FAST_HOST + 1) / 1001)
    assert high == pytest.approx((100 * 10 * SLOW_HOST + 1) / 1001)


def test_a_host_that_is_far_ahead_says_nothing():
    assert shares(FixedCosts(host=0.1, device=1.0), STEP) == (1.0, 1.0)


def test_a_slow_host_falls_behind_where_the_assumed_one_is_just_ahead():
    low, high = shares(FixedCosts(host=0.9, device=1.0), STEP)
    assert high == pytest.approx((100 * 0.9 * SLOW_HOST + 1) / 100.9)
    assert low == pytest.approx(1.0, abs=0.01), "the device decides on a fast one as well"


def test_steps_count_by_their_length():
    costs = FixedCosts(host=10.0, device=1.0)
    _, both = shares(costs, STEP, trace_of((*FORWARD, 0)))
    assert both == pytest.approx((100 * 10 * SLOW_HOST + 1 + 10 * SLOW_HOST + 1) / (1001 + 11))


def test_a_processor_that_computes_itself_has_no_other_host():
    assert shares(FixedCosts(host=10.0, is_host=True), STEP) == (1.0, 1.0)
    assert host_shares([], FixedCosts()) == (1.0, 1.0)


def test_a_measured_host_is_known_better():
    launches, measured, assumed = trace_of(*[(*FORWARD, 1)] * 100), FixedCosts(), FixedCosts()
    measured.calibration = "of this machine"
    assert shares(measured, launches) == pytest.approx(MEASURED_HOST)
    assert shares(assumed, launches) == pytest.approx((FAST_HOST, SLOW_HOST))


def test_only_the_host_is_another():
    costs = FixedCosts(host=2.0, device=3.0)
    other = OtherHost(costs, 1.5)
    assert other.host_seconds(STEP.calls[0]) == pytest.approx(3.0)
    assert other.device_seconds(STEP.calls[0]) == costs.device_seconds(STEP.calls[0])
    assert (other.is_host, other.description, other.communication_share) == (False, "fixed", 0.0)
