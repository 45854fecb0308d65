"""Memory that batches of varying length leave in the allocator's cache, beyond what the longest one reserves.

A longer batch than any before asks the driver for new memory: blocks that shorter ones left are too small for it, and
stay. So the reserved bytes of a run creep above those of its longest step, most where single tensors are large, as the
logits of a large vocabulary are. Steps of lengths that the plan may bring are played through one allocator, storages
sized by the polynomial through the traced lengths, and compared with the longest step alone.

Of a run's thousands of steps `DRAWS` are played.
Not covered: steps whose operators differ from length to length, and storages of `SMALL_BYTES` or less at the longest.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forerun.data.plan import BatchPlan
from forerun.data.sample_lengths import SampleLengths
from forerun.forecasting.lengths import basis
from forerun.memory.allocator import SMALL_BYTES, CachingAllocator
from forerun.memory.replay import carried_storages
from forerun.settings.schema import Settings
from forerun.trace import ALLOCATE, OP, Trace

DRAWS = 32
"""Steps that are played; the longest one comes in their middle."""
GOLDEN, FIRST_SHARE = (5**0.5 - 1) / 2, 0.5
"""Shares of the lengths that are played go round by the golden section: even, in an order that is typical. Of twelve
random orders the median left 1.1, 6.1, 12.3 and 22.2 GiB (three blocks of Qwen-1.8B at 1,024 to 8,192 tokens), this one
1.3, 6.8, 12.1 and 18.8; single orders twice as much or half, so a run may, too."""
Sizes = NDArray[np.int64]
Event = tuple[bool, int]
"""Whether a storage is born, and its index."""


def left_in_cache_bytes(traces: Mapping[int, Trace], lengths: Sequence[int]) -> int:
    """Bytes that steps of `lengths` reserve beyond steps of the longest of `traces` (length → trace).

    0 where one length was traced, or where steps differ in more than the sizes of their storages.
    """
    longest = traces[max(traces)]
    if len(traces) == 1 or not lengths or not all(_is_alike(trace, longest) for trace in traces.values()):
        return 0
    nodes = list(traces)
    table = np.array([[storage.bytes for storage in trace.storages] for trace in traces.values()], dtype=np.float64)
    most = table[nodes.index(max(nodes))]

    def sizes(length: int) -> Sizes:
        return np.clip(np.rint(_between(nodes, table, length)), 0, most).astype(np.int64)

    key = _digest(longest, table, lengths)
    if key not in _PLAYED:
        _PLAYED[key] = _played(longest, most, [sizes(length) for length in lengths])
    return _PLAYED[key]


def _between(nodes: list[int], table: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    """Bytes of each storage at `length`, from those at the lengths `nodes`.

    Through two lengths goes a power of the length: a line would make written-out attention, its square, too large.
    """
    if len(nodes) > 2:
        return np.array([basis(nodes, node, length) for node in nodes]) @ table
    first, second = np.log(np.maximum(table, 1.0))
    share = (math.log(length) - math.log(nodes[0])) / (math.log(nodes[1]) - math.log(nodes[0]))
    return np.where(table.max(0) > 0, np.exp(first + share * (second - first)), 0.0)


_PLAYED: dict[bytes, int] = {}
"""Results of this process: many cards run steps of the same storages, and the card does not matter."""


def _digest(trace: Trace, table: NDArray[np.float64], lengths: Sequence[int]) -> bytes:
    events = [(kind, index) for kind, index in trace.events if kind != OP]
    streams = [storage.stream for storage in trace.storages]
    parts = (table, events, streams, list(lengths), sorted(carried_storages(trace).items()))
    return hashlib.sha256(b"|".join(np.array(part).tobytes() for part in parts)).digest()


def _played(longest: Trace, most: NDArray[np.float64], steps: list[Sizes]) -> int:
    """What `steps` reserve beyond those of the longest trace, whose storages have `most` bytes."""
    middle = len(steps) // 2
    whole = most.astype(np.int64)
    large = most > SMALL_BYTES
    varying = _reserved_bytes(longest, large, [*steps[:middle], whole, *steps[middle:]])
    return max(0, varying - _reserved_bytes(longest, large, [whole] * 3))


def drawn_lengths(plan: BatchPlan, settings: Settings, number: int = DRAWS) -> list[int]:
    """Lengths of batches as a run may bring them; none where all are as long, or where lengths are not known."""
    shares = [(FIRST_SHARE + (draw + 1) * GOLDEN) % 1 for draw in range(number)]
    counts = {s.length: n for s, n in plan.shapes if n and s.size == settings.batch.micro_batch_size}
    if len(counts) > 1:
        lengths = sorted(counts)
        up_to = np.cumsum([counts[length] for length in lengths]) / sum(counts.values())
        return [lengths[np.searchsorted(up_to, share)] for share in shares]
    mean, limit = settings.data.mean_tokens, plan.longest.length
    if mean is None or settings.batch.padding not in ("longest", "bucketed") or list(counts) == [limit]:
        return []
    samples = SampleLengths(mean, limit, drops=settings.data.too_long == "drop")
    in_batch = settings.batch.micro_batch_size if settings.batch.padding == "longest" else 1
    return [samples.quantile(share ** (1 / in_batch)) for share in shares]


def _is_alike(trace: Trace, other: Trace) -> bool:
    return (trace.warm_from, trace.events, len(trace.storages)) == (
        other.warm_from, other.events, len(other.storages)
    )  # fmt: skip


def _reserved_bytes(trace: Trace, counted: NDArray[np.bool_], steps: Iterable[Sizes]) -> int:
    """Most that is reserved while `steps` are played one after another, of the storages that are `counted`."""
    events = [(kind == ALLOCATE, index) for kind, index in trace.events if kind != OP and counted[index]]
    first = sum(kind != OP and bool(counted[index]) for kind, index in trace.events[: trace.warm_from])
    play = _Play([storage.stream for storage in trace.storages])
    carried = {newer: older for newer, older in carried_storages(trace).items() if counted[newer]}
    for number, sizes in enumerate(steps):
        if number == 0:
            play.events(events[:first], sizes)
        play.events(events[first:], sizes)
        play.hand_over(carried)
    return play.allocator.peak_reserved_bytes


@dataclass
class _Play:
    """Storages that are alive in one allocator."""

    streams: Sequence[int]
    allocator: CachingAllocator = field(default_factory=CachingAllocator)
    alive: set[int] = field(default_factory=set[int])

    def events(self, events: Iterable[Event], sizes: Sizes) -> None:
        """What is born takes the size of this step; what a step before left under its index goes."""
        bytes_of = sizes.tolist()
        for is_born, index in events:
            if index in self.alive:
                self.allocator.free(index)
                self.alive.discard(index)
            if is_born:
                self.allocator.allocate(index, bytes_of[index], self.streams[index])
                self.alive.add(index)

    def hand_over(self, carried: Mapping[int, int]) -> None:
        """What a step leaves takes the place of what the step before had left."""
        for newer, older in carried.items():
            if newer in self.alive:
                self.allocator.rename(newer, older)
                self.alive.discard(newer)
                self.alive.add(older)
