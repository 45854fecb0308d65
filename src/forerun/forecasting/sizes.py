"""One step at many micro-batch sizes from three traces: sizes, FLOP and bytes grow linearly with the samples.

Two traces give a line through every number in them, a third, at the largest size, proves the line exact; where it is
not (a kernel chosen by size, a shape that depends on the batch otherwise) every size is traced.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from forerun.hardware.catalogue import Device
from forerun.memory.card import replay_on_card
from forerun.trace import Call, Named, Op, Storage, TensorSpec, Trace

SMALLEST, SECOND = 2, 3
"""Sizes of the two traces of a line. A batch of one is special: its dimension has no stride and broadcasts."""
LARGEST = 1 << 14


class NotLinear(Exception):
    """The traces are not two points of a line. Caught here; never shown to users."""


class TracedSizes:
    """Traces of one step by micro-batch size, made by `trace` at three sizes and worked out between them."""

    def __init__(self, trace: Callable[[int], Trace], largest: int):
        self._trace = trace
        self._largest = largest
        self._traces: dict[int, Trace] = {}
        self.is_exact = largest > SECOND and self._proves()

    @property
    def traced(self) -> list[int]:
        """Sizes that were really traced."""
        return sorted(self._traces)

    def at(self, size: int) -> Trace:
        """The step with micro-batches of `size` samples."""
        if size in self._traces or not self.is_exact or not SMALLEST <= size <= self._largest:
            return self._traced(size)
        return line(self._traces[SMALLEST], self._traces[SECOND], size - SMALLEST)

    def _traced(self, size: int) -> Trace:
        if size not in self._traces:
            self._traces[size] = self._trace(size)
        return self._traces[size]

    def _proves(self) -> bool:
        try:
            extrapolated = line(self._traced(SMALLEST), self._traced(SECOND), self._largest - SMALLEST)
        except NotLinear:
            return False
        largest = self._traced(self._largest)
        return [(s.bytes, s.reduces) for s in extrapolated.storages] == [
            (s.bytes, s.reduces) for s in largest.storages
        ] and all(
            _same(extrapolated.calls[a.call], largest.calls[b.call])
            for a, b in zip(extrapolated.ops, largest.ops, strict=True)
        )


def line(first: Trace, second: Trace, distance: int) -> Trace:
    """The trace `distance` steps of one sample beyond `first`, of which `second` is one step away.

    Raises:
        NotLinear: the two do not have the same operators, storages and order.
    """
    shape = [len(first.ops), len(first.storages), first.events]
    if shape != [len(second.ops), len(second.storages), second.events]:
        raise NotLinear
    calls: dict[tuple[int, int], int] = {}
    ops: list[Op] = []
    line_calls: list[Call] = []
    for a, b in zip(first.ops, second.ops, strict=True):
        if replace(a, call=0) != replace(b, call=0):
            raise NotLinear
        pair = a.call, b.call
        if pair not in calls:
            calls[pair] = len(line_calls)
            line_calls.append(_extrapolate(first.calls[a.call], second.calls[b.call], distance))
        ops.append(replace(a, call=calls[pair]))
    storages = [_extrapolate(a, b, distance) for a, b in zip(first.storages, second.storages, strict=True)]
    return replace(
        first, ops=ops, calls=line_calls, storages=storages,
        micro_batch_size=first.micro_batch_size + distance,
    )  # fmt: skip


def _extrapolate(first: Any, second: Any, distance: int) -> Any:
    """The record `distance` samples beyond `first`: every number grows as from `first` to `second`."""
    if isinstance(first, Call | TensorSpec | Named):
        fields = type(first).__dataclass_fields__
        return type(first)(**{n: _extrapolate(getattr(first, n), getattr(second, n), distance) for n in fields})
    if isinstance(first, Storage):
        if replace(first, bytes=0, reduces=0) != replace(second, bytes=0, reduces=0):
            raise NotLinear
        bytes_, reduces = (_extrapolate(getattr(first, n), getattr(second, n), distance) for n in ("bytes", "reduces"))
        return replace(first, bytes=bytes_, reduces=reduces)
    if isinstance(first, tuple):
        if len(first) != len(second):
            raise NotLinear
        return tuple(_extrapolate(a, b, distance) for a, b in zip(first, second, strict=True))
    if isinstance(first, float) and isinstance(second, float):
        return first  # a factor such as one over the tokens: it costs the same whatever it is
    if isinstance(first, int) and not isinstance(first, bool):
        return first + (second - first) * distance
    if first != second:
        raise NotLinear
    return first


def _same(first: Call, second: Call) -> bool:
    return (first.name, first.inputs, first.outputs, first.flops, first.bytes_read, first.bytes_written) == (
        second.name, second.inputs, second.outputs, second.flops, second.bytes_read, second.bytes_written,
    )  # fmt: skip


def largest_that_fits(trace: Callable[[int], Trace], device: Device) -> int:
    """The largest micro-batch (of at most `LARGEST`) whose step fits `device`, 0 when not even one sample does."""

    def fits(step: Trace) -> bool:
        return replay_on_card(step, device).fits

    trace = cache(trace)
    if not fits(trace(1)):
        return 0
    first = trace(SMALLEST)
    if not fits(first):
        return 1
    sizes = TracedSizes(trace, _beyond(first, trace(SECOND), fits))
    low, high = SMALLEST, LARGEST
    while low < LARGEST and (high - low > 1 or high == LARGEST):
        middle = min(2 * low, LARGEST) if high == LARGEST else (low + high) // 2
        low, high = (middle, high) if fits(sizes.at(middle)) else (low, middle)
    return low


def _beyond(first: Trace, second: Trace, fits: Callable[[Trace], bool]) -> int:
    """A size that does not fit if growth is linear: sizes up to there are worth a proof."""
    size = SECOND + 1
    try:
        while size < LARGEST and fits(line(first, second, size - SMALLEST)):
            size *= 2
    except NotLinear:
        return SMALLEST
    return min(size, LARGEST)
