"""A trace played through the allocator, and everything that the allocator did: behind `--snapshot` and `--trace`.

Entries have the names that `torch.cuda.memory._record_memory_history` gives them. Addresses are those of a driver that
never uses an address twice, so that no two segments overlap.

Not covered: expandable segments, and `empty_cache` called by the program.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.errors import NotSupported
from forerun.memory.allocator import AllocatorOptions, CachingAllocator, MemoryBlock, Pool, SimulatedOutOfMemory
from forerun.memory.overhead import workspace_places
from forerun.trace import ALLOCATE, OP, Trace
from forerun.units import MIB

FIRST_ADDRESS = 0x7F00_0000_0000
"""Where device memory begins on 64-bit Linux; below 2**53, so that JavaScript keeps every address exactly."""
SEGMENT_ALIGNMENT = 2 * MIB
"""Granularity of `cudaMalloc` for segments of 2 MiB and more."""


@dataclass(frozen=True, slots=True)
class AllocatorEntry:
    """One thing that the allocator did."""

    action: str
    """`alloc`, `free_requested`, `free_completed`, `segment_alloc`, `segment_free` or `oom`."""
    address: int
    """0 for `oom`."""
    size: int
    """Bytes asked for, before rounding."""
    stream: int
    storage: int | None
    """Index into `Trace.storages`; negative for a workspace of a library, None for a segment."""
    event: int
    """Index into `Trace.events` of what caused it."""
    free_bytes: int = 0
    """What the card had left; of `oom` only."""


@dataclass(frozen=True, slots=True)
class HistoryBlock:
    """A piece of a segment at the end of the history."""

    address: int
    size: int
    requested_size: int
    storage: int | None
    """What lives in it; None where it is free."""


@dataclass(frozen=True, slots=True)
class HistorySegment:
    """Memory taken from the driver that is there at the end of the history; its blocks cover it."""

    address: int
    size: int
    stream: int
    is_small: bool
    blocks: tuple[HistoryBlock, ...]


@dataclass(slots=True)
class AllocatorHistory:
    """Entries in order, what is left at the end, and both curves."""

    entries: list[AllocatorEntry] = field(default_factory=list)
    segments: list[HistorySegment] = field(default_factory=list)
    curve: list[tuple[int, int, int]] = field(default_factory=list)
    """Event of the trace, allocated bytes and reserved bytes after it; one for each event that changes either."""


def play_history(
    trace: Trace, *, workspace_bytes: Sequence[int] = (), capacity_bytes: int | None = None, stop: int | None = None
) -> AllocatorHistory:
    """Play the events of `trace` before `stop` on a card with `capacity_bytes`; without end where that is too little.

    A program can get less out of its card here than it did when it ran: it may have emptied the cache by itself.
    """
    try:
        return _play(trace, RecordingAllocator(capacity_bytes), workspace_bytes, capacity_bytes, stop)
    except SimulatedOutOfMemory:
        return _play(trace, RecordingAllocator(), workspace_bytes, capacity_bytes, stop)


def _play(
    trace: Trace, allocator: "RecordingAllocator", workspace_bytes: Sequence[int], card_bytes: int | None,
    stop: int | None,
) -> AllocatorHistory:  # fmt: skip
    stop = len(trace.events) if stop is None else stop
    workspaces = workspace_places(trace, workspace_bytes)
    failures = dict(trace.failures)
    for position in range(stop + 1):
        allocator.event = position
        if position in failures:
            allocator.fail(failures[position], card_bytes or 0)
        if position in workspaces and position < stop:
            allocator.allocate(*workspaces[position])
        if position == stop or trace.events[position][0] == OP:
            continue
        kind, index = trace.events[position]
        if kind == ALLOCATE:
            allocator.allocate(index, trace.storages[index].bytes, trace.storages[index].stream)
        else:
            allocator.free(index)
        allocator.history.curve.append((position, allocator.allocated_bytes, allocator.reserved_bytes))
    allocator.history.segments = allocator.segments_now()
    return allocator.history


class RecordingAllocator(CachingAllocator):
    """The simulated allocator, which writes down what it does."""

    def __init__(self, capacity_bytes: int | None = None, options: AllocatorOptions | None = None):
        super().__init__(capacity_bytes, options)
        if self.options.expandable_segments:
            raise NotSupported(
                "A memory snapshot of expandable segments is not offered; leave expandable_segments off."
            )
        self.history = AllocatorHistory()
        self.event = 0
        self._requests: dict[int, tuple[int, int]] = {}
        """Bytes asked for and stream of each live storage."""
        self._bases: dict[int, int] = {}
        """Address that is shown of each segment."""
        self._first_blocks: dict[int, tuple[MemoryBlock, int]] = {}
        """First block of each segment, and its stream."""
        self._next_base = FIRST_ADDRESS
        self._stream = 0

    def allocate(self, key: int, size: int, stream: int = 0) -> None:
        """Give `size` bytes to the storage `key`."""
        self._stream = stream
        super().allocate(key, size, stream)
        block = self._live.get(key)
        if size and block is not None:
            self._requests[key] = size, stream
            self._note("alloc", self._place(block), size, stream, key)

    def free(self, key: int) -> None:
        """Take back what the storage `key` has."""
        block = self._live.get(key)
        if block is not None:
            address = self._place(block)
            size, stream = self._requests.pop(key)
            self._note("free_requested", address, size, stream, key)
            self._note("free_completed", address, size, stream, key)
        super().free(key)

    def fail(self, size: int, card_bytes: int) -> None:
        """Note a request of `size` bytes that a card of `card_bytes` refused."""
        room = max(0, card_bytes - self.reserved_bytes)
        self.history.entries.append(AllocatorEntry("oom", 0, size, 0, None, self.event, room))

    def segments_now(self) -> list[HistorySegment]:
        """Every segment with its blocks, by address."""
        storages = {id(block): key for key, block in self._live.items()}
        segments = []
        for segment, (first, stream) in self._first_blocks.items():
            blocks: list[HistoryBlock] = []
            block: MemoryBlock | None = first
            while block is not None:
                key = storages.get(id(block))
                size = 0 if key is None else self._requests[key][0]
                blocks.append(HistoryBlock(self._place(block), block.size, size, key))
                block = block.after
            segments.append(
                HistorySegment(
                    self._bases[segment], self._segments[segment], stream, first.pool.is_small, tuple(blocks)
                )
            )
        return segments

    def _new_segment(self, pool: Pool, size: int) -> MemoryBlock | None:
        block = super()._new_segment(pool, size)
        if block is not None:
            self._bases[block.segment] = self._next_base
            self._first_blocks[block.segment] = block, self._stream
            self._next_base += -(-size // SEGMENT_ALIGNMENT) * SEGMENT_ALIGNMENT
            self._note("segment_alloc", self._bases[block.segment], size, self._stream)
        return block

    def _release(self, block: MemoryBlock) -> int:
        freed_bytes = super()._release(block)
        if freed_bytes:
            _, stream = self._first_blocks.pop(block.segment)
            self._note("segment_free", self._bases.pop(block.segment), freed_bytes, stream)
        return freed_bytes

    def _place(self, block: MemoryBlock) -> int:
        return self._bases[block.segment] + block.address - block.segment

    def _note(self, action: str, address: int, size: int, stream: int, storage: int | None = None) -> None:
        self.history.entries.append(AllocatorEntry(action, address, size, stream, storage, self.event))
