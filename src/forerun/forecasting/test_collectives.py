"""Collectives of a step, counted, and the ranks that they say have rows of their own."""

from forerun.forecasting.collectives import count_collectives, data_parallel_ranks
from forerun.trace import GROUP_SIZE, MACHINES, OP, Call, Op, Phase, TensorSpec, Trace


def step(*collectives):
    """A step of `(name, phase, ranks, machines, bytes)`."""
    trace = Trace()
    for name, phase, ranks, machines, size in collectives:
        spec = TensorSpec((size // 2,), (1,), "bfloat16", size)
        group = ((GROUP_SIZE, ranks), (MACHINES, machines))
        trace.events.append((OP, len(trace.ops)))
        trace.ops.append(Op(len(trace.calls), phase, 0, ""))
        trace.calls.append(Call(name, (), group, (spec,), (), size if "aten" in name else 0, size, size))
    return trace


REDUCE, SCATTER = "c10d.allreduce_.default", "c10d._reduce_scatter_base_.default"
TENSOR = "_c10d_functional.all_reduce.default"


def test_equal_collectives_are_counted_and_the_largest_come_first():
    rows = count_collectives(
        step(
            (REDUCE, Phase.BACKWARD, 8, 1, 64), (TENSOR, Phase.FORWARD, 4, 1, 6000), (REDUCE, Phase.BACKWARD, 8, 1, 64)
        )
    )
    assert [(row.name, row.phase, row.ranks, row.bytes, row.count) for row in rows] == [
        ("all_reduce", "forward", 4, 6000, 1), ("allreduce_", "backward", 8, 64, 2),
    ]  # fmt: skip


def test_gradients_say_how_many_ranks_have_rows_of_their_own():
    assert data_parallel_ranks(step()) == 1
    assert data_parallel_ranks(step((REDUCE, Phase.BACKWARD, 8, 1, 64))) == 8
    hybrid = step((SCATTER, Phase.BACKWARD, 8, 1, 64), (REDUCE, Phase.BACKWARD, 4, 4, 64))
    assert data_parallel_ranks(hybrid) == 32
    assert data_parallel_ranks(step((SCATTER, Phase.BACKWARD, 2, 1, 64), (TENSOR, Phase.BACKWARD, 4, 1, 64))) == 2
    megatron = step(
        (REDUCE, Phase.FORWARD, 4, 1, 64), (REDUCE, Phase.BACKWARD, 4, 1, 64), (REDUCE, Phase.BACKWARD, 2, 1, 64)
    )
    assert data_parallel_ranks(megatron) == 2
    logged = step((REDUCE, Phase.BACKWARD, 8, 1, 6400), (REDUCE, Phase.FORWARD, 8, 1, 4))
    assert data_parallel_ranks(logged) == 8


def test_gradients_may_be_reduced_behind_the_backward_pass():
    """By DeepSpeed's engine, or by a loop over `p.grad`; norms and checks that follow are little beside them."""
    passes = [("aten.mm.default", Phase.FORWARD, 1, 1, 64), ("aten.mm.default", Phase.BACKWARD, 1, 1, 64)]
    for phase in (Phase.FORWARD, Phase.OPTIMIZER):
        gradients, norm = (REDUCE, phase, 4, 1, 6400), (TENSOR, Phase.OPTIMIZER, 8, 1, 4)
        assert data_parallel_ranks(step(*passes, gradients, norm)) == 4
        assert data_parallel_ranks(step(*passes, gradients, *passes, gradients, norm)) == 4  # for each micro-batch
    before = (REDUCE, Phase.FORWARD, 4, 1, 6400)
    assert data_parallel_ranks(step(before, *passes)) == 1
    assert (
        data_parallel_ranks(step(*passes, (SCATTER, Phase.BACKWARD, 2, 1, 64), (REDUCE, Phase.FORWARD, 4, 1, 4))) == 2
    )
