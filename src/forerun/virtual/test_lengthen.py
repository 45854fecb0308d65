"""Made-up programs of any depth: what is worked out from three depths is the program at another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.trace import ALLOCATE, FREE, OP, Call, Op, Phase, Storage, TensorSpec, Trace
from forerun.virtual.lengthen import Lengthened, NotRepeating


class Program:
    """Writes a trace: parameters, a forward and a backward pass through blocks, one update of all parameters."""

    def __init__(self):
        self.trace = Trace()

    def born(self, size: int, name: str = "", freed: Phase | None = None) -> int:
        self.trace.events.append((ALLOCATE, len(self.trace.storages)))
        self.trace.storages.append(Storage(size, Phase.PREPARE, freed_in=freed, name=name))
        return len(self.trace.storages) - 1

    def free(self, index: int) -> None:
        self.trace.events.append((FREE, index))

    def run(self, name: str, *sizes: int, module: str = "", listed: tuple[int, ...] = ()) -> None:
        specs = tuple(TensorSpec((size,), (1,), "float32", size) for size in (*sizes, *listed))
        arguments = (*specs[: len(sizes)], specs[len(sizes) :]) if listed else specs
        call = Call(name, arguments, (), specs, (), 0, sum(sizes) + sum(listed), 0)
        if call not in self.trace.calls:
            self.trace.calls.append(call)
        self.trace.events.append((OP, len(self.trace.ops)))
        self.trace.ops.append(Op(self.trace.calls.index(call), Phase.FORWARD, 0, module))


def program(blocks: int, sizes: list[int], last: int, *, odd_first: bool = False) -> Trace:
    """Of `blocks` blocks, each with operators whose results have `sizes`; all results of a block die in reverse."""
    builder = Program()
    parameters = [builder.born(size, f"layers.{n}.weight") for n in range(blocks) for size in sizes]
    parameters.append(builder.born(last, "head"))
    activations = []
    for n in range(blocks):
        if odd_first and n == 0:
            builder.run("mask", 1, module="layers.0")
        for size in sizes:
            activations.append((builder.born(size, freed=Phase.BACKWARD), size))
            builder.run("forward", size, module=f"layers.{n}")
    builder.run("loss", last)
    for index, size in reversed(activations):
        builder.run("backward", size)
        builder.free(index)
    builder.run("update", listed=tuple(builder.trace.storages[p].bytes for p in parameters))
    builder.trace.total_parameters = sum(builder.trace.storages[p].bytes for p in parameters)
    return builder.trace


def content(trace: Trace) -> list[object]:
    """Everything but the numbering of calls."""
    ops = [(trace.calls[op.call], op.phase, op.module) for op in trace.ops]
    return [trace.events, trace.storages, ops, trace.total_parameters]


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6), last=st.integers(5, 9), odd_first=st.booleans(),
    more=st.integers(0, 9),
)  # fmt: skip
def test_any_depth(sizes, last, odd_first, more):
    three = [program(blocks, sizes, last, odd_first=odd_first) for blocks in (2, 3, 4)]
    deep = Lengthened(*three).at(more)
    assert content(deep) == content(program(2 + more, sizes, last, odd_first=odd_first))


def test_what_changes_unevenly_is_refused():
    three = [program(blocks, [1, 2], 5) for blocks in (2, 3, 4)]
    three[2].total_parameters += 1
    with pytest.raises(NotRepeating):
        Lengthened(*three).at(5)


def test_other_blocks_are_refused():
    with pytest.raises(NotRepeating):
        Lengthened(program(2, [1, 2], 5), program(3, [1, 2], 5), program(4, [1, 3], 5)).at(5)
    with pytest.raises(NotRepeating):
        Lengthened(program(2, [1, 2], 5), program(3, [1, 2], 5), program(5, [1, 2], 5)).at(5)
