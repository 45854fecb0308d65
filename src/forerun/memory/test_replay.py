"""The account of a hand-made step: peaks, categories, and that both sum up."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.memory.replay import category, replay_memory
from forerun.trace import ALLOCATE, FREE, OP, Call, Category, Op, Phase, Storage, Trace
from forerun.units import MIB

BLOCK = MIB * 4


def step() -> Trace:
    """A parameter; in the step an activation (forward to backward), a temporary inside forward, a gradient."""
    storages = [
        Storage(BLOCK, Phase.PREPARE, Category.PARAMETER),
        Storage(BLOCK, Phase.FORWARD, None, Phase.BACKWARD),
        Storage(2 * BLOCK, Phase.FORWARD, None, Phase.FORWARD),
        Storage(BLOCK, Phase.BACKWARD, Category.GRADIENT, Phase.OPTIMIZER),
    ]
    calls = [Call("aten.add.Tensor", (), (), (), (), 0, 0, 0)]
    ops = [Op(0, Phase.FORWARD, 0, ""), Op(0, Phase.BACKWARD, 0, "")]
    events = [
        (ALLOCATE, 0),
        (ALLOCATE, 1), (ALLOCATE, 2), (OP, 0), (FREE, 2),
        (ALLOCATE, 3), (OP, 1), (FREE, 1), (FREE, 3),
    ]  # fmt: skip
    return Trace(calls=calls, ops=ops, storages=storages, events=events, warm_from=1)


def test_peak_and_breakdown():
    replay = replay_memory(step())
    assert replay.peak_allocated_bytes == 4 * BLOCK
    assert replay.breakdown.parameter_bytes == BLOCK
    assert replay.breakdown.activation_bytes == BLOCK
    assert replay.breakdown.temporary_bytes == 2 * BLOCK
    assert replay.breakdown.gradient_bytes == 0
    assert replay.breakdown.total_bytes == replay.peak_allocated_bytes
    assert replay.start_bytes == replay.end_bytes == BLOCK


def test_reserved_counts_segments():
    assert replay_memory(step()).peak_reserved_bytes == 20 * MIB
    assert replay_memory(step(), is_host=True).peak_reserved_bytes == pytest.approx(4 * BLOCK, abs=64), "and headers"


def test_workspaces_count_as_other():
    """Each handle takes its own at its first product: that of forward, and that of backward's thread."""
    products = replace(step(), calls=[Call("aten.addmm.default", (), (), (), (), 0, 0, 0)])
    replay = replay_memory(products, workspace_bytes=[BLOCK, BLOCK])
    assert replay.breakdown.other_bytes == 2 * BLOCK
    assert replay.peak_allocated_bytes == 6 * BLOCK, "in the first step too few are there at the peak"
    forward = replace(products, ops=products.ops[:1] * 2)
    assert replay_memory(forward, workspace_bytes=[BLOCK, BLOCK]).breakdown.other_bytes == BLOCK


def test_a_step_without_products_has_no_workspace():
    assert replay_memory(step(), workspace_bytes=[BLOCK]) == replay_memory(step())


def test_outputs_that_a_loop_holds_are_alive_while_the_next_are_made():
    """Each pass makes an output, then drops the one of the pass before: two are alive at the peak, never three."""
    storages = [Storage(BLOCK, Phase.PREPARE), Storage(BLOCK, Phase.FORWARD)]
    events = [(ALLOCATE, 0), (ALLOCATE, 1), (FREE, 0)]
    replay = replay_memory(Trace(storages=storages, events=events, warm_from=1), passes=4)
    assert replay.peak_allocated_bytes == 2 * BLOCK
    assert replay.end_bytes == BLOCK


def test_an_unsplit_block_counts_whole():
    """A request of 11 MiB gets a cached block of 12: what is too little to split off is allocated too."""
    storages = [Storage(12 * MIB, Phase.PREPARE), Storage(11 * MIB, Phase.FORWARD, None, Phase.BACKWARD)]
    events = [(ALLOCATE, 0), (FREE, 0), (ALLOCATE, 1), (FREE, 1)]
    replay = replay_memory(Trace(storages=storages, events=events, warm_from=2))
    assert replay.peak_allocated_bytes == replay.breakdown.total_bytes == 12 * MIB


def test_what_survives_forward_is_an_activation():
    assert category(Storage(1, Phase.FORWARD, None, None)) is Category.ACTIVATION
    assert category(Storage(1, Phase.FORWARD, None, Phase.FORWARD)) is Category.TEMPORARY
    assert category(Storage(1, Phase.BACKWARD, None, Phase.BACKWARD)) is Category.TEMPORARY


@given(st.lists(st.tuples(st.integers(0, 3 * MIB), st.integers(0, 10)), min_size=1, max_size=40))
def test_random_steps_never_go_negative_and_sum_up(births):
    """Each storage lives for the given number of further births."""
    storages, events, dying = [], [], []
    for index, (size, lifetime) in enumerate(births):
        storages.append(Storage(size, Phase.FORWARD, None, Phase.BACKWARD))
        events += [(ALLOCATE, index), (OP, 0)]
        dying.append((index + lifetime, index))
        events += [(FREE, i) for due, i in dying if due == index]
    events += [(FREE, i) for due, i in dying if due >= len(births)]
    trace = Trace(
        calls=[Call("aten.add.Tensor", (), (), (), (), 0, 0, 0)], ops=[Op(0, Phase.FORWARD, 0, "")],
        storages=storages, events=events,
    )  # fmt: skip
    replay = replay_memory(trace)
    assert all(value >= 0 for moment in replay.curve for value in moment.live.model_dump().values())
    assert replay.start_bytes == replay.end_bytes == 0
    assert replay.breakdown.total_bytes == replay.peak_allocated_bytes <= replay.peak_reserved_bytes
