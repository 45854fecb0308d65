"""PyTorch's CUDA caching allocator, simulated: which segments it takes from the driver for a stream of allocations.

Follows `c10/cuda/CUDACachingAllocator.cpp` of PyTorch 2.11 to 2.13 with its default configuration: sizes rounded to
512 bytes, a pool for small (at most 1 MiB) and one for large requests, 2 MiB and 20 MiB segments, larger requests
rounded to 2 MiB, best fit, splitting, merging with free neighbours. When a request would exceed `capacity_bytes`,
segments that are wholly free are returned to the driver and the request is tried once more.

Not covered: `expandable_segments`, `max_split_size_mb`, garbage-collection threshold, several streams.
"""

import bisect
from dataclasses import dataclass, field

from forerun.units import KIB, MIB

MIN_BLOCK_BYTES = 512  # kMinBlockSize
SMALL_BYTES = MIB  # kSmallSize
SMALL_SEGMENT_BYTES = 2 * MIB  # kSmallBuffer
LARGE_SEGMENT_BYTES = 20 * MIB  # kLargeBuffer
MIN_LARGE_ALLOCATION_BYTES = 10 * MIB  # kMinLargeAlloc
LARGE_ROUNDING_BYTES = 2 * MIB  # kRoundLarge
SMALL_SPLIT_BYTES = MIN_BLOCK_BYTES
LARGE_SPLIT_BYTES = 1024 * KIB  # kSmallSize: a large block keeps a remainder of at most 1 MiB


class OutOfMemory(Exception):
    """The simulated device is full. Caught by whoever replays; never shown to users."""


@dataclass(eq=False, slots=True)
class Block:
    """A piece of a segment; neighbours by address within the segment."""

    address: int
    size: int
    pool: "Pool"
    segment: int
    is_free: bool = True
    before: "Block | None" = None
    after: "Block | None" = None


@dataclass(eq=False)
class Pool:
    """Free blocks of one size class, ordered by (size, address) for best fit."""

    is_small: bool
    free: list[tuple[int, int, Block]] = field(default_factory=list)

    def add(self, block: Block) -> None:
        """Put a free block in order."""
        bisect.insort(self.free, (block.size, block.address, block), key=lambda entry: entry[:2])

    def remove(self, block: Block) -> None:
        """Take a block out."""
        index = bisect.bisect_left(self.free, (block.size, block.address), key=lambda entry: entry[:2])
        self.free.pop(index)

    def best_fit(self, size: int) -> Block | None:
        """The smallest free block of at least `size`, lowest address first; taken out."""
        index = bisect.bisect_left(self.free, (size, 0), key=lambda entry: entry[:2])
        return self.free.pop(index)[2] if index < len(self.free) else None

    def remains_worth_splitting(self, remaining: int) -> bool:
        """Whether the rest of a block becomes a block of its own."""
        return remaining >= SMALL_SPLIT_BYTES if self.is_small else remaining > LARGE_SPLIT_BYTES


class CachingAllocator:
    """Simulated allocator of one device; addresses are fictitious but distinct per segment."""

    def __init__(self, capacity_bytes: int | None = None):
        self.capacity_bytes = capacity_bytes
        self.allocated_bytes = self.reserved_bytes = 0
        self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        self.flushes = 0
        self._small, self._large = Pool(is_small=True), Pool(is_small=False)
        self._live: dict[int, Block] = {}
        self._segments: dict[int, int] = {}
        self._next_address = 0

    def allocate(self, key: int, size: int) -> None:
        """Give `size` bytes to the storage `key`; zero bytes take nothing.

        Raises:
            OutOfMemory: the capacity is exceeded even with the cache flushed.
        """
        if size == 0:
            return
        rounded = round_size(size)
        pool = self._small if rounded <= SMALL_BYTES else self._large
        block = pool.best_fit(rounded) or self._new_segment(pool, rounded)
        self._split(block, rounded)
        block.is_free = False
        self._live[key] = block
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)

    def free(self, key: int) -> None:
        """Take back what the storage `key` has; unknown keys had zero bytes."""
        block = self._live.pop(key, None)
        if block is None:
            return
        self.allocated_bytes -= block.size
        block.is_free = True
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.is_free:
                block.pool.remove(neighbour)
                block = _merge(block, neighbour)
        block.pool.add(block)

    def flush(self) -> None:
        """Return wholly free segments to the driver (`empty_cache`)."""
        for pool in (self._small, self._large):
            for _, _, block in list(pool.free):
                if block.before is None and block.after is None:
                    pool.remove(block)
                    self.reserved_bytes -= self._segments.pop(block.segment)
        self.flushes += 1

    def _new_segment(self, pool: Pool, rounded: int) -> Block:
        size = segment_size(rounded)
        if self.capacity_bytes is not None and self.reserved_bytes + size > self.capacity_bytes:
            self.flush()
            if self.reserved_bytes + size > self.capacity_bytes:
                raise OutOfMemory
        address = self._next_address
        self._next_address += size + LARGE_SEGMENT_BYTES
        self._segments[address] = size
        self.reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return Block(address, size, pool, segment=address)

    def _split(self, block: Block, size: int) -> None:
        remaining = block.size - size
        if not block.pool.remains_worth_splitting(remaining):
            return
        rest = Block(block.address + size, remaining, block.pool, block.segment, before=block, after=block.after)
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, size
        block.pool.add(rest)


def round_size(size: int) -> int:
    """Bytes that a request takes: a multiple of 512, at least 512."""
    return max(MIN_BLOCK_BYTES, -(-size // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES)


def segment_size(rounded: int) -> int:
    """Bytes asked of the driver for a request that no cached block can serve."""
    if rounded <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded < MIN_LARGE_ALLOCATION_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-rounded // LARGE_ROUNDING_BYTES) * LARGE_ROUNDING_BYTES


def _merge(one: Block, other: Block) -> Block:
    """One free block out of two neighbours; the lower address survives."""
    low, high = (one, other) if one.address < other.address else (other, one)
    low.size += high.size
    low.after = high.after
    if high.after is not None:
        high.after.before = low
    return low
