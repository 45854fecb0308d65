"""Two clocks on small hand-made traces, where every figure can be worked out on paper."""

import dataclasses

import pytest

from forerun.clock.timeline import operator_spans, replay_clock
from forerun.trace import OP, Call, Op, Phase, Trace


class FixedCosts:
    """One second on the device and a tenth on the host for every kernel, unless the name says otherwise."""

    description = "fixed"

    def __init__(self, host=0.1, device=1.0, is_host=False):
        self.host, self.device, self.is_host = host, device, is_host

    def device_seconds(self, call):
        return 0.0 if call.is_view else self.device

    def host_seconds(self, call):
        return self.host


def trace_of(*steps, accumulation=1):
    """`steps` are (phase, micro step, call index); calls: 0 a product of 10 FLOP, 1 a view, 2 a read by the host."""
    calls = [
        Call("aten.mm.default", (), (), (), (), 10, 0, 0),
        Call("aten.view.default", (), (), (), (), 0, 0, 0, is_view=True),
        Call("aten.item.default", (), (), (), (), 0, 0, 0, syncs=True),
        Call("c10d.allreduce_.default", (), (), (), (), 0, 0, 0),
        Call("c10d._allgather_base_.default", (), (), (), (), 0, 0, 0),
        Call("fsdp.split_with_sizes_copy.default", (), (), (), (), 0, 0, 0),
    ]
    ops = [Op(call, phase, micro, "") for phase, micro, call in steps]
    return Trace(calls=calls, ops=ops, events=[(OP, i) for i in range(len(ops))], accumulation=accumulation)


FORWARD, BACKWARD, OPTIMIZER = (Phase.FORWARD, 0), (Phase.BACKWARD, 0), (Phase.OPTIMIZER, -1)


def test_device_bound_step_hides_the_host():
    time = replay_clock(trace_of((*FORWARD, 0), (*BACKWARD, 0), (*OPTIMIZER, 0)), FixedCosts())
    assert time.phases.forward_seconds == time.phases.backward_seconds == time.phases.optimizer_seconds == 1
    assert time.phases.host_seconds == pytest.approx(0.1), "only the first launch is waited for"
    assert time.seconds == pytest.approx(3.1)


@pytest.mark.parametrize("host", [0.1, 2.0])
def test_a_call_that_stands_for_several_takes_the_time_of_all(host):
    each = trace_of(*[step for _ in range(8) for step in ((*FORWARD, 0), (*FORWARD, 1), (*FORWARD, 2))])
    many = trace_of((*FORWARD, 0), (*FORWARD, 1), (*FORWARD, 2))
    many.calls[:] = [dataclasses.replace(call, times=8) for call in many.calls]
    one_by_one, together = (replay_clock(trace, FixedCosts(host=host)) for trace in (each, many))
    assert together.seconds == pytest.approx(one_by_one.seconds)
    assert together.hardware_flops == one_by_one.hardware_flops == 80
    assert [(row.name, row.calls) for row in together.operators] == [
        (row.name, row.calls) for row in one_by_one.operators
    ]


def test_host_bound_step_shows_launch_gaps():
    time = replay_clock(trace_of(*[(*FORWARD, 0)] * 10), FixedCosts(host=2.0))
    assert time.seconds == pytest.approx(21)
    assert time.phases.host_seconds == pytest.approx(11)


def test_views_cost_the_host_only():
    time = replay_clock(trace_of((*FORWARD, 1), (*FORWARD, 1), (*FORWARD, 0)), FixedCosts())
    assert time.phases.host_seconds == pytest.approx(0.3)
    assert time.phases.forward_seconds == 1


def test_a_read_makes_the_host_wait():
    free = replay_clock(trace_of((*FORWARD, 0), (*FORWARD, 0), (*BACKWARD, 0)), FixedCosts(host=0.5))
    waits = replay_clock(trace_of((*FORWARD, 0), (*FORWARD, 2), (*BACKWARD, 0)), FixedCosts(host=0.5))
    assert waits.seconds == pytest.approx(free.seconds + 0.5)


@pytest.mark.parametrize("accumulation", [1, 2, 3, 17])
def test_later_micro_steps_repeat_the_second(accumulation):
    second = [(Phase.FORWARD, 1, 0), (Phase.BACKWARD, 1, 0)] if accumulation > 1 else []
    trace = trace_of((*FORWARD, 0), (*BACKWARD, 0), *second, (*OPTIMIZER, 0), accumulation=accumulation)
    time = replay_clock(trace, FixedCosts())
    assert time.phases.forward_seconds == pytest.approx(accumulation)
    assert time.seconds == pytest.approx(0.1 + 2 * accumulation + 1)
    assert time.model_flops == 10 * (2 * accumulation + 1)


def test_one_clock_on_a_host_device():
    time = replay_clock(trace_of((*FORWARD, 0), (*FORWARD, 0)), FixedCosts(is_host=True))
    assert time.seconds == pytest.approx(2.2)
    assert time.phases.host_seconds == pytest.approx(0.2)


def test_recomputed_work_is_hardware_not_model_flops():
    trace = trace_of((*FORWARD, 0), (*BACKWARD, 0))
    trace.events.append((OP, len(trace.ops)))
    trace.ops.append(Op(0, Phase.BACKWARD, 0, "block", recomputed=True))
    time = replay_clock(trace, FixedCosts())
    assert (time.model_flops, time.hardware_flops) == (20, 30)


def test_a_collective_beside_other_work_costs_nothing():
    """It takes a second, while the backward pass goes on for three."""
    time = replay_clock(trace_of((*BACKWARD, 0), (*BACKWARD, 3), *[(*BACKWARD, 0)] * 3, (*OPTIMIZER, 0)), FixedCosts())
    assert time.phases.communication_seconds == 0
    assert time.seconds == pytest.approx(0.1 + 5)


def test_the_update_waits_for_the_last_collective():
    time = replay_clock(trace_of((*BACKWARD, 0), (*BACKWARD, 3), (*OPTIMIZER, 0)), FixedCosts())
    assert time.phases.communication_seconds == pytest.approx(1)
    assert time.seconds == pytest.approx(0.1 + 3)


@pytest.mark.parametrize("accumulation", [2, 3, 9])
def test_gradients_are_reduced_beside_the_last_micro_step_only(accumulation):
    """The reduction comes after the last backward pass: nothing is left to hide it."""
    steps = (*BACKWARD, 0), (Phase.BACKWARD, 1, 0), (Phase.BACKWARD, -1, 3), (*OPTIMIZER, 0)
    time = replay_clock(trace_of(*steps, accumulation=accumulation), FixedCosts())
    assert time.phases.communication_seconds == pytest.approx(1)
    assert time.seconds == pytest.approx(0.1 + accumulation + 1 + 1)
    assert len(time.ends) == 4, "one for each traced operator"


def test_weights_are_waited_for_where_they_are_used():
    """Gathering begins as soon as it is issued, so that half of it is hidden behind the product before."""
    time = replay_clock(trace_of((*FORWARD, 4), (*FORWARD, 0), (*FORWARD, 5)), FixedCosts(host=0.5))
    assert time.phases.communication_seconds == 0
    alone = replay_clock(trace_of((*FORWARD, 4), (*FORWARD, 5)), FixedCosts(host=0.1))
    assert alone.phases.communication_seconds == pytest.approx(1.1)


def test_a_first_run_is_not_part_of_the_warm_step():
    trace = trace_of((*FORWARD, 0), (*BACKWARD, 0), (*FORWARD, 0), (*BACKWARD, 0))
    trace.warm_from = 2
    assert replay_clock(trace, FixedCosts()).model_flops == 20


def test_operators_are_ranked_and_each_op_has_an_end():
    time = replay_clock(trace_of((*FORWARD, 0), (*FORWARD, 1), (*BACKWARD, 0), (*BACKWARD, 0)), FixedCosts())
    assert [(o.name, o.phase, o.calls) for o in time.operators] == [
        ("mm.default", "backward", 2),
        ("mm.default", "forward", 1),
    ]
    assert len(time.ends) == 4
    assert list(time.ends) == sorted(time.ends)


def test_spans_are_the_same_clocks_operator_by_operator():
    trace = trace_of((*FORWARD, 0), (*FORWARD, 1), (*BACKWARD, 0), (*BACKWARD, 3), (*OPTIMIZER, 0))
    costs = FixedCosts()
    spans, time = operator_spans(trace, costs), replay_clock(trace, costs)
    assert [span.op for span in spans] == [0, 1, 2, 3, 4]
    assert [span.is_collective for span in spans] == [False, False, False, True, False]
    kernels = sum(span.end - span.begin for span in spans if not span.is_collective)
    phases = time.phases
    assert kernels == pytest.approx(phases.forward_seconds + phases.backward_seconds + phases.optimizer_seconds)
    assert spans[-1].end == pytest.approx(time.seconds)
    assert spans[-1].begin == pytest.approx(spans[3].end), "the update waits for the collective"
    assert [span.issue_begin for span in spans] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


def test_spans_of_a_host_follow_each_other():
    spans = operator_spans(trace_of((*FORWARD, 0), (*BACKWARD, 0)), FixedCosts(is_host=True))
    assert [(s.issue_begin, s.begin, s.end) for s in spans] == [
        pytest.approx((0, 0.1, 1.1)), pytest.approx((1.1, 1.2, 2.2)),
    ]  # fmt: skip


@pytest.mark.parametrize(("collective", "backward"), [(10.0, 2 / 0.75), (1.0, 1.25 + 1)])
def test_products_slow_while_collectives_hold_multiprocessors(collective, backward):
    """Two products of a second begin with a reduction: at 3/4 of their speed for as long as it runs."""

    class Costs(FixedCosts):
        communication_share = 0.25

        def device_seconds(self, call):
            return collective if "allreduce" in call.name else super().device_seconds(call)

    time = replay_clock(trace_of((*BACKWARD, 3), (*BACKWARD, 0), (*BACKWARD, 0)), Costs(host=0.0))
    assert time.phases.backward_seconds == pytest.approx(backward)
