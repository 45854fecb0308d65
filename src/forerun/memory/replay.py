"""A trace replayed through the allocator: the peaks of a warm step, what they consist of, and how they build up.

The preparation and then the warm step several times, so that later passes find the cache that a running program has. A
host device (`cpu`) has no caching allocator: its peak reserved is what stays resident of the C library's heap.

A storage without an owner is an *activation* when it is born in the forward pass and dies in the backward pass or
later, else *temporary*. Sizes are what the allocator hands out, so that the categories sum to the peak.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

from forerun.memory.alloc_conf import options_of
from forerun.memory.allocator import AllocatorOptions, CachingAllocator
from forerun.memory.heap import Heap
from forerun.memory.overhead import workspace_places
from forerun.records import MemoryBreakdown
from forerun.trace import ALLOCATE, EMPTY_CACHE, FREE, OP, Category, Phase, Storage, Trace

PLACES = {category: place for place, category in enumerate(Category)}
"""Where a category is among the sizes of a moment."""


class Moment(NamedTuple):
    """Live bytes by category just after the event at index `event` of the trace."""

    event: int
    phase: Phase
    sizes: tuple[int, ...]
    """In the order of `Category`."""

    @property
    def live(self) -> MemoryBreakdown:
        """The same with names."""
        return _breakdown(self.sizes)

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return sum(self.sizes)


@dataclass(frozen=True)
class MemoryReplay:
    """Peaks of the warm step in bytes, the breakdown at the allocated peak, and the curve over the step."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    breakdown: MemoryBreakdown
    curve: tuple[Moment, ...]
    start_bytes: int
    end_bytes: int
    peak_event: int = 0
    """Index of the event of the trace at which the most was allocated."""


def replay_memory(
    trace: Trace,
    *,
    is_host: bool = False,
    workspace_bytes: Sequence[int] = (),
    passes: int = 8,
    options: AllocatorOptions | None = None,
    capacity_bytes: int | None = None,
    keeps_curve: bool = True,
) -> MemoryReplay:
    """Play `trace` through the allocator of a GPU, or of the host when `is_host`.

    `workspace_bytes` are blocks that libraries hold through the allocator from their first matrix product on
    (`workspace_places`); `options` are the trace's own where they are not stated. Where the program ran out of memory
    and went on (`Trace.recovered_at`), what comes before `warm_from` is played without a limit, and forgotten. `passes`
    is how often the warm step is played at most: the cache that earlier steps leave decides which blocks later ones
    get, until two passes are alike. The returned account is that of the pass with the highest peak, its curve empty
    where nobody asks for it (`keeps_curve`).

    Raises:
        SimulatedOutOfMemory: more is reserved than `capacity_bytes`, even with the cache returned.
    """
    recovers = trace.recovered_at > 0
    options = options_of(trace.allocator) if options is None else options
    caching = CachingAllocator(None if recovers else capacity_bytes, options)
    allocator: _Allocator = Heap() if is_host else caching
    live, sizes = [0] * len(PLACES), dict[int, int]()
    places = [PLACES[category(storage)] for storage in trace.storages]
    workspaces = workspace_places(trace, workspace_bytes)
    account = _Account(trace, allocator, live, sizes, places, keeps_curve, workspaces)
    account.play(0, trace.warm_from)
    if recovers:  # what did not fit is over; an allocator that fails has given its cache back
        caching.flush()
        caching.reset_peaks()
        caching.capacity_bytes = capacity_bytes
    best, carried, peaks_before, is_first = account, carried_storages(trace), None, True
    # A first step fills the cache with blocks that later steps split otherwise, so one pass can peak too low.
    for _ in range(passes):
        account = _Account(trace, allocator, live, sizes, places, keeps_curve, workspaces)
        account.play(trace.warm_from, len(trace.events))
        account.hand_over(carried)
        peaks = account.peak_bytes, allocator.peak_reserved_bytes
        if account.peak_bytes > best.peak_bytes or is_first:
            best, is_first = account, False
        if peaks == peaks_before:
            break
        peaks_before = peaks
    return MemoryReplay(
        peak_allocated_bytes=best.peak_bytes,
        peak_reserved_bytes=max(allocator.peak_reserved_bytes, best.peak_bytes),
        breakdown=_breakdown(best.peak),
        curve=tuple(best.curve),
        start_bytes=best.start_bytes,
        end_bytes=sum(live),
        peak_event=best.peak_event,
    )


def carried_storages(trace: Trace) -> dict[int, int]:
    """Storages that one step leaves to the next, such as outputs that a loop still holds: newer index → older index.

    Matched in order among storages of the same size; the next step frees the newer where this step freed the older.
    """
    born_before = {index for kind, index in trace.events[: trace.warm_from] if kind == ALLOCATE}
    freed = [index for kind, index in trace.events[trace.warm_from :] if kind == FREE and index in born_before]
    born = [index for kind, index in trace.events[trace.warm_from :] if kind == ALLOCATE]
    all_freed = {index for kind, index in trace.events if kind == FREE}
    survivors = [index for index in born if index not in all_freed]
    older: dict[int, list[int]] = {}
    for index in freed:
        older.setdefault(trace.storages[index].bytes, []).append(index)
    older_by_newer = {}
    for index in survivors:
        waiting = older.get(trace.storages[index].bytes)
        if waiting:
            older_by_newer[index] = waiting.pop(0)
    return older_by_newer


class _Allocator(Protocol):
    peak_reserved_bytes: int

    def allocate(self, key: int, size: int, stream: int = 0) -> None: ...

    def free(self, key: int) -> None: ...

    def block_bytes(self, key: int) -> int: ...

    def rename(self, old: int, new: int) -> None: ...


@dataclass
class _Account:
    """Live bytes by category over one part of the trace; `live` and `sizes` go on from part to part."""

    trace: Trace
    allocator: _Allocator
    live: list[int]
    sizes: dict[int, int]
    places: list[int]
    """Place of each storage's category in `live`."""
    keeps_curve: bool
    workspaces: dict[int, tuple[int, int]]
    """Those that are not taken yet (`workspace_places`)."""
    curve: list[Moment] = field(default_factory=list)
    start_bytes: int = 0
    peak: tuple[int, ...] = ()
    peak_event: int = 0

    @cached_property
    def _emptying(self) -> frozenset[int]:
        """Indices of the calls that give cached memory back; none on a host."""
        has_cache = isinstance(self.allocator, CachingAllocator)
        calls = enumerate(self.trace.calls) if has_cache else ()
        return frozenset(number for number, call in calls if call.name == EMPTY_CACHE)

    def play(self, start: int, stop: int) -> None:
        live, places, storages, ops = self.live, self.places, self.trace.storages, self.trace.ops
        emptying = self._emptying
        self.start_bytes = total = peak = sum(live)
        self.peak = tuple(live)
        for position in range(start, stop):
            kind, index = self.trace.events[position]
            if kind == OP:
                if emptying and ops[index].call in emptying:
                    self.allocator.flush()  # type: ignore[attr-defined]
                if position in self.workspaces:
                    total += self._take(*self.workspaces.pop(position))
                    if total > peak:
                        peak, self.peak, self.peak_event = total, tuple(live), position
                if self.keeps_curve and (phase := ops[index].phase) is not Phase.PREPARE:
                    self.curve.append(Moment(position, phase, tuple(live)))
                continue
            storage = storages[index]
            # one that is allocated may be there: left by the pass before and taken over by nothing
            size = -self._drop(index) if index in self.sizes else 0
            if kind == ALLOCATE:
                self.allocator.allocate(index, storage.bytes, storage.stream)
                self.sizes[index] = self.allocator.block_bytes(index)
                size += self.sizes[index]
            total += size
            live[places[index]] += size
            if total > peak:
                peak, self.peak, self.peak_event = total, tuple(live), position

    @property
    def peak_bytes(self) -> int:
        """Most that was allocated at once."""
        return sum(self.peak)

    def hand_over(self, carried: dict[int, int]) -> None:
        """At the end of a pass, let what it leaves take the place of what the pass before had left."""
        for newer, older in carried.items():
            size = self.sizes.pop(newer, 0)
            self.allocator.rename(newer, older)
            self.sizes[older] = size
            self.live[self.places[newer]] -= size
            self.live[self.places[older]] += size

    def _take(self, key: int, size: int) -> int:
        self.allocator.allocate(key, size)
        block = self.allocator.block_bytes(key)
        self.live[PLACES[Category.OTHER]] += block
        return block

    def _drop(self, index: int) -> int:
        self.allocator.free(index)
        return self.sizes.pop(index, 0)


def _breakdown(sizes: Sequence[int]) -> MemoryBreakdown:
    return MemoryBreakdown.model_construct(
        None, **{f"{c.value}_bytes": size for c, size in zip(PLACES, sizes, strict=True)}
    )  # fmt: skip


def category(storage: Storage) -> Category:
    """Category that a storage counts as: its owner, or what its lifetime says."""
    if storage.owner is not None:
        return storage.owner
    if storage.phase is Phase.FORWARD and storage.freed_in is not Phase.FORWARD:
        return Category.ACTIVATION
    return Category.TEMPORARY
