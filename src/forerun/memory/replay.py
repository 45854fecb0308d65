"""A trace replayed through the allocator: the peaks of a warm step, what they consist of, and how they build up.

The preparation and then the warm step are played twice, so that the second pass finds the cache that a running program
has. A host device (`cpu`) has no caching allocator: its peak reserved equals its peak allocated.

A storage without an owner is an *activation* when it is born in the forward pass and dies in the backward pass or
later, else *temporary*. Sizes are what the allocator hands out, so that the categories sum to the peak.
"""

from dataclasses import dataclass, field

from forerun.memory.allocator import CachingAllocator, round_size
from forerun.records import MemoryBreakdown
from forerun.trace import ALLOCATE, FREE, OP, Category, Phase, Storage, Trace

HOST_ALIGNMENT_BYTES = 64  # c10/core/alignment.h, gAlignment
WORKSPACE = -1
"""Key of the allocation that stands for library workspaces, apart from all storages."""


@dataclass(frozen=True)
class Moment:
    """Live bytes by category just after the event at index `event` of the trace."""

    event: int
    phase: Phase
    live: MemoryBreakdown


@dataclass(frozen=True)
class MemoryReplay:
    """Peaks of the warm step in bytes, the breakdown at the allocated peak, and the curve over the step."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    breakdown: MemoryBreakdown
    curve: tuple[Moment, ...]
    start_bytes: int
    end_bytes: int


def replay_memory(trace: Trace, *, is_host: bool = False, workspace_bytes: int = 0, passes: int = 2) -> MemoryReplay:
    """Play `trace` through the allocator of a GPU, or of the host when `is_host`.

    `workspace_bytes` are held by libraries through the allocator from the first matrix product on. `passes` is how
    often the warm step is played.
    """
    reserved = 0
    if not is_host:
        allocator = CachingAllocator()
        _play(trace, allocator, 0, trace.warm_from)
        allocator.allocate(WORKSPACE, workspace_bytes)
        for _ in range(passes):
            _play(trace, allocator, trace.warm_from, len(trace.events))
        reserved = allocator.peak_reserved_bytes
    account = _Account(trace, is_host, workspace_bytes)
    account.play()
    return MemoryReplay(
        peak_allocated_bytes=account.peak.total_bytes,
        peak_reserved_bytes=max(reserved, account.peak.total_bytes),
        breakdown=account.peak,
        curve=tuple(account.curve),
        start_bytes=account.start_bytes,
        end_bytes=sum(account.live.values()),
    )


def _play(trace: Trace, allocator: CachingAllocator, start: int, stop: int) -> None:
    for kind, index in trace.events[start:stop]:
        if kind == ALLOCATE:
            allocator.allocate(index, trace.storages[index].bytes)
        elif kind == FREE:
            allocator.free(index)


@dataclass
class _Account:
    """Live bytes by category over the warm step."""

    trace: Trace
    is_host: bool
    workspace_bytes: int
    live: dict[Category, int] = field(default_factory=lambda: dict.fromkeys(Category, 0))
    curve: list[Moment] = field(default_factory=list)
    start_bytes: int = 0

    def play(self) -> None:
        self.live[Category.OTHER] += self.workspace_bytes
        total = peak = self.workspace_bytes
        self.peak = self._breakdown()
        phase = Phase.PREPARE
        for position, (kind, index) in enumerate(self.trace.events):
            warm = position >= self.trace.warm_from
            if position == self.trace.warm_from:
                self.start_bytes, peak = total, 0
            if kind == OP:
                phase = self.trace.ops[index].phase
                if phase is not Phase.PREPARE:
                    self.curve.append(Moment(position, phase, self._breakdown()))
                continue
            storage = self.trace.storages[index]
            size = self._size(storage) * (1 if kind == ALLOCATE else -1)
            total += size
            self.live[category(storage)] += size
            if warm and total > peak:
                peak, self.peak = total, self._breakdown()

    def _size(self, storage: Storage) -> int:
        if storage.bytes == 0:
            return 0
        if self.is_host:
            return -(-storage.bytes // HOST_ALIGNMENT_BYTES) * HOST_ALIGNMENT_BYTES
        return round_size(storage.bytes)

    def _breakdown(self) -> MemoryBreakdown:
        return MemoryBreakdown.model_validate({f"{c.value}_bytes": size for c, size in self.live.items()})


def category(storage: Storage) -> Category:
    """What a storage counts as."""
    if storage.owner is not None:
        return storage.owner
    if storage.phase is Phase.FORWARD and storage.freed_in is not Phase.FORWARD:
        return Category.ACTIVATION
    return Category.TEMPORARY
