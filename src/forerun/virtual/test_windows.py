"""One step of several, cut out of a trace by hand."""

from forerun.trace import ALLOCATE, FREE, OP, RANKS, Call, Op, Phase, Storage, Trace
from forerun.virtual.windows import of_stage, window


def call(name, *ranks):
    return Call(name, (), ((RANKS, ranks),) if ranks else (), (), (), 0, 0, 0)


def trace():
    """Storage 0 stays, 1 is replaced by 2 between two steps; the second step waits for its exchange."""
    module = "model.layers.3.mlp"
    storages = [
        Storage(8, Phase.PREPARE, name="model.layers.3.w"),
        *(Storage(size, Phase.FORWARD) for size in (2, 4, 6)),
    ]
    storages[3].freed_in = Phase.FORWARD
    return Trace(
        calls=[call("first"), call("second", 2, 3), call("third", 0, 2)],
        ops=[Op(0, Phase.FORWARD, 0, module), Op(1, Phase.FORWARD, 0, module), Op(2, Phase.FORWARD, 0, "model.norm")],
        storages=storages,
        events=[(ALLOCATE, 0), (ALLOCATE, 1), (OP, 0), (FREE, 1), (ALLOCATE, 2), (OP, 1), (ALLOCATE, 3), (OP, 2), (FREE, 3)],
        waits=[(3, 0), (7, 1)],
    )  # fmt: skip


def test_what_is_left_of_steps_between_comes_first():
    step = window(trace(), 2, 5, 8)
    assert step.events == [(ALLOCATE, 0), (ALLOCATE, 1), (FREE, 1), (ALLOCATE, 2), (OP, 0), (ALLOCATE, 3), (OP, 1)]
    assert step.warm_from == 4
    assert [each.name for each in step.calls] == ["second", "third"]
    assert step.waits == [(6, 0)]
    assert step.storages[3].freed_in is None, "it ends after the step"


def test_ranks_and_blocks_go_on():
    moved = of_stage(trace(), 4, 2, ("model.layers", 5))
    assert [dict(each.keywords).get(RANKS) for each in moved.calls] == [None, (6, 7), (0, 2)]
    assert [op.module for op in moved.ops] == ["model.layers.8.mlp", "model.layers.8.mlp", "model.norm"]
    assert moved.storages[0].name == "model.layers.8.w"
    assert of_stage(trace(), 0, 2, ("model.layers", 0)) == trace()
