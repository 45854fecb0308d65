"""PyTorch's CUDA caching allocator, simulated: which segments it takes from the driver for a stream of allocations.

Follows `c10/cuda/CUDACachingAllocator.cpp` and `c10/core/AllocatorConfig.h` of PyTorch 2.11 to 2.13. Requests are
rounded to 512 bytes (or to divisions of powers of two). Each stream has a pool for small requests (at most 1 MiB) and
one for large ones, with 2 MiB and 20 MiB segments, larger requests rounded to 2 MiB. A request takes the smallest free
block that holds it; what is left over is split off, unless a large block would keep at most 1 MiB: then the block is
given whole, and counts whole as allocated. Free neighbours merge. When the driver has no more, cached segments go back
to it and the request is tried again. With `expandable_segments` a pool grows one range of addresses page by page.

Not covered: blocks that another stream still uses (`record_stream`), graph-private pools, several devices.
"""

import bisect
from dataclasses import dataclass, field

from forerun.units import MIB

# c10/core/AllocatorConfig.h:16-25, 340 (2.13)
MIN_BLOCK_BYTES = 512  # kMinBlockSize
SMALL_BYTES = MIB  # kSmallSize; also the most that an unsplit large block may waste
SMALL_SEGMENT_BYTES = 2 * MIB  # kSmallBuffer; page of an expandable segment in the small pool
LARGE_SEGMENT_BYTES = 20 * MIB  # large_segment_size (kLargeBuffer before); page of an expandable segment, large pool
MIN_LARGE_ALLOCATION_BYTES = 10 * MIB  # kMinLargeAlloc
LARGE_ROUNDING_BYTES = 2 * MIB  # kRoundLarge
SEGMENT_GAP = 1 << 50
"""Fictitious addresses between segments, so that none touch."""


class SimulatedOutOfMemory(Exception):
    """The simulated device is full. Caught by whoever replays; never shown to users."""


@dataclass(frozen=True)
class AllocatorOptions:
    """The keys of `PYTORCH_CUDA_ALLOC_CONF` that move memory; the defaults are PyTorch's."""

    expandable_segments: bool = False
    """Grow segments page by page instead of asking for new ones."""
    max_split_bytes: int | None = None
    """`max_split_size_mb`: blocks from this size on are never split, nor given to smaller requests."""
    garbage_collection_threshold: float = 0.0
    """Share of the capacity from which on old cached segments are returned first; works with a capacity only."""
    roundup_divisions: int = 0
    """`roundup_power2_divisions`: round requests up to this many steps between powers of two; 0 does not."""


@dataclass(eq=False, slots=True)
class MemoryBlock:
    """A piece of a segment; neighbours by address within the segment. An unmapped one has addresses but no memory."""

    address: int
    size: int
    pool: "Pool"
    segment: int
    is_free: bool = True
    is_mapped: bool = True
    before: "MemoryBlock | None" = None
    after: "MemoryBlock | None" = None
    age: int = 0
    """Value of the pool's clock when it was freed."""


@dataclass(eq=False)
class Pool:
    """Blocks of one size class on one stream: free ones ordered by (size, address), unmapped ones by address."""

    is_small: bool
    free: list[tuple[int, int, MemoryBlock]] = field(default_factory=list)
    unmapped: list[tuple[int, MemoryBlock]] = field(default_factory=list)

    @property
    def page(self) -> int:
        """Bytes by which an expandable segment grows."""
        return SMALL_SEGMENT_BYTES if self.is_small else LARGE_SEGMENT_BYTES

    def add(self, block: MemoryBlock) -> None:
        """Put a free block in order."""
        if block.is_mapped:
            bisect.insort(self.free, (block.size, block.address, block))  # no two have one address
        else:
            bisect.insort(self.unmapped, (block.address, block))

    def remove(self, block: MemoryBlock) -> None:
        """Take a free block out of the order."""
        if block.is_mapped:
            self.free.pop(bisect.bisect_left(self.free, (block.size, block.address)))  # type: ignore[arg-type]
        else:
            self.unmapped.pop(bisect.bisect_left(self.unmapped, (block.address,)))  # type: ignore[arg-type]

    def at_least(self, size: int) -> int:
        """Index in `free` of the smallest block of `size` or more."""
        return bisect.bisect_left(self.free, (size, 0))  # type: ignore[arg-type]


class CachingAllocator:
    """Simulated allocator of one device; addresses are fictitious but distinct per segment."""

    def __init__(self, capacity_bytes: int | None = None, options: AllocatorOptions | None = None):
        self.capacity_bytes = capacity_bytes
        self.options = options or AllocatorOptions()
        self.allocated_bytes = self.reserved_bytes = 0
        self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        self.flushes = 0
        self._pools: dict[tuple[int, bool], Pool] = {}
        self._live: dict[int, MemoryBlock] = {}
        self._segments: dict[int, int] = {}
        self._next_address = 0
        self._clock = 0

    def allocate(self, key: int, size: int, stream: int = 0) -> None:
        """Give `size` bytes to the storage `key`; zero bytes take nothing.

        Raises:
            SimulatedOutOfMemory: the capacity is exceeded even with the cache flushed.
        """
        if size == 0:
            return
        self._clock += 1
        rounded = round_size(size, self.options.roundup_divisions)
        pool = self._pool(stream, is_small=rounded <= SMALL_BYTES)
        block = self._cached(pool, rounded) or self._from_driver(pool, rounded)
        self._split(block, rounded)
        block.is_free = False
        self._live[key] = block
        self.allocated_bytes += block.size
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes

    def free(self, key: int) -> None:
        """Take back what the storage `key` has; unknown keys had zero bytes."""
        block = self._live.pop(key, None)
        if block is None:
            return
        self.allocated_bytes -= block.size
        block.is_free, block.age = True, self._clock
        self._add_merged(block)

    def block_bytes(self, key: int) -> int:
        """Bytes of the block that serves storage `key`, with what could not be split off; 0 for an unknown key."""
        block = self._live.get(key)
        return block.size if block is not None else 0

    def rename(self, old: int, new: int) -> None:
        """The block of storage `old` belongs to `new` from now on."""
        if old in self._live:
            self._live[new] = self._live.pop(old)

    def flush(self) -> None:
        """Return all memory without a live block to the driver (`empty_cache`)."""
        for pool in self._pools.values():
            for _, _, block in list(pool.free):
                self._release(block)
        self.flushes += 1

    def reset_peaks(self) -> None:
        """Begin to look for the peaks from now on (`reset_peak_memory_stats`)."""
        self.peak_allocated_bytes, self.peak_reserved_bytes = self.allocated_bytes, self.reserved_bytes

    def _pool(self, stream: int, *, is_small: bool) -> Pool:
        if (pool := self._pools.get((stream, is_small))) is None:
            pool = self._pools[stream, is_small] = Pool(is_small)
        return pool

    def _cached(self, pool: Pool, size: int) -> MemoryBlock | None:
        """The free block that serves `size` best, taken out of the pool."""
        # CUDACachingAllocator.cpp, get_free_block: lower_bound by (size, address)
        index = pool.at_least(size)
        if index == len(pool.free):
            return None
        block = pool.free[index][2]
        if self.options.expandable_segments:
            # get_free_block: best fit goes by the size that a block can expand to, not by the one it has
            while index + 1 < len(pool.free) and _reach(pool.free[index + 1][2]) < _reach(block):
                index += 1
                block = pool.free[index][2]
        limit = self.options.max_split_bytes
        if limit is not None:
            # get_free_block: max_split_size, and max_non_split_rounding_size, whose default is a large segment
            if size < limit <= block.size:
                return None
            if size >= limit and block.size >= size + LARGE_SEGMENT_BYTES:
                return None
        pool.free.pop(index)
        return block

    def _from_driver(self, pool: Pool, size: int) -> MemoryBlock:
        """A new block of at least `size`, after giving cached memory back if that must be."""
        # CUDACachingAllocator.cpp, malloc: garbage_collect_cached_blocks, alloc_block, release_available_cached_blocks,
        # alloc_block, release_cached_blocks, alloc_block
        if self.capacity_bytes is not None and self.options.garbage_collection_threshold > 0:
            self._collect_garbage(size)
        block = self._take(pool, size)
        if block is None and self._release_oversize(pool, size):
            block = self._take(pool, size)
        if block is None:
            self.flush()
            block = self._take(pool, size)
        if block is None:
            raise SimulatedOutOfMemory
        return block

    def _take(self, pool: Pool, size: int) -> MemoryBlock | None:
        if self.options.expandable_segments:
            return self._expand(pool, size)
        return self._new_segment(pool, segment_size(size))

    def _new_segment(self, pool: Pool, size: int) -> MemoryBlock | None:
        if not self._grow(size):
            return None
        address = self._new_address()
        self._segments[address] = size
        return MemoryBlock(address, size, pool, segment=address)

    def _new_address(self) -> int:
        self._next_address += SEGMENT_GAP
        return self._next_address

    def _grow(self, size: int) -> bool:
        """Take `size` bytes of the card; False when it has not so many."""
        if self.capacity_bytes is not None and self.reserved_bytes + size > self.capacity_bytes:
            return False
        self.reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return True

    def _expand(self, pool: Pool, size: int) -> MemoryBlock | None:
        """Map pages behind or between the free blocks of an expandable segment until `size` bytes are in a row."""
        # CUDACachingAllocator.cpp, find_expandable_block: the first range with room, then a new one
        block = next((start for _, hole in pool.unmapped if (start := _run_start(hole, size)) is not None), None)
        if block is None:
            address = self._new_address()
            self._segments[address] = 0
            # half the gap, so that ranges never touch; PyTorch's ExpandableSegment reserves 1 1/8 times the card
            block = MemoryBlock(address, SEGMENT_GAP // 2, pool, segment=address, is_mapped=False)
            pool.add(block)
        while not block.is_mapped or block.size < size:
            hole = block.after if block.is_mapped else block
            missing = size - block.size if block.is_mapped else size
            if hole is None or not self._map(hole, min(missing, hole.size)):
                return None
        pool.remove(block)
        return block

    def _map(self, hole: MemoryBlock, size: int) -> bool:
        """Give memory to whole pages at the start of an unmapped block; the rest of it stays unmapped."""
        page = hole.pool.page
        size = min(-(-size // page) * page, hole.size)
        if not self._grow(size):
            return False
        self._segments[hole.segment] += size
        hole.pool.remove(hole)
        if size < hole.size:
            rest = _cut(hole, size)
            hole.pool.add(rest)
        hole.is_mapped, hole.age = True, self._clock
        self._add_merged(hole)
        return True

    def _split(self, block: MemoryBlock, size: int) -> None:
        # CUDACachingAllocator.cpp, should_split
        remaining, limit = block.size - size, self.options.max_split_bytes
        if block.pool.is_small or self.options.expandable_segments:
            is_split = remaining >= MIN_BLOCK_BYTES
        else:
            is_split = remaining > SMALL_BYTES and (limit is None or size < limit)
        if is_split:
            block.pool.add(_cut(block, size))

    def _add_merged(self, block: MemoryBlock) -> None:
        """Put a free block into its pool, joined with free neighbours that have memory."""
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.is_free and neighbour.is_mapped:
                block.pool.remove(neighbour)
                block = _merge(block, neighbour)
        block.pool.add(block)

    def _release(self, block: MemoryBlock) -> int:
        """Return the memory of a free block to the driver as far as whole segments or pages allow; bytes returned."""
        if self.options.expandable_segments:
            return self._unmap(block)
        # CUDACachingAllocator.cpp, release_blocks: a segment that was split and is partly in use stays
        if block.before is not None or block.after is not None:
            return 0
        block.pool.remove(block)
        self.reserved_bytes -= self._segments.pop(block.segment)
        return block.size

    def _unmap(self, block: MemoryBlock) -> int:
        # CUDACachingAllocator.cpp, unmap_block: pages count from the start of the range, not of the block
        page, base = block.pool.page, block.segment
        start = base + -(-(block.address - base) // page) * page
        end = base + (block.address + block.size - base) // page * page
        if end <= start:
            return 0
        pool = block.pool
        pool.remove(block)
        if end < block.address + block.size:
            pool.add(_cut(block, end - block.address))
        hole = block
        if start > block.address:
            hole = _cut(block, start - block.address)
            pool.add(block)
        self.reserved_bytes -= hole.size
        self._segments[base] -= hole.size
        freed = hole.size
        hole.is_mapped = False
        for neighbour in (hole.before, hole.after):
            if neighbour is not None and not neighbour.is_mapped:
                pool.remove(neighbour)
                hole = _merge(hole, neighbour)
        pool.add(hole)
        return freed

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """With a split limit: give back cached blocks of at least the limit until `size` would fit."""
        limit = self.options.max_split_bytes
        if limit is None:
            return False
        target, index = max(size, limit), pool.at_least(max(size, limit))
        if index < len(pool.free):
            self._release(pool.free[index][2])
            return True
        freed = 0
        for _, _, block in reversed(list(pool.free)):
            if freed >= target or block.size < limit:
                break
            freed += self._release(block)
        return freed >= target

    def _collect_garbage(self, size: int) -> None:
        """Give back whole cached segments, oldest first, while more than the threshold is in use."""
        capacity = self.capacity_bytes or 0
        target = self.options.garbage_collection_threshold * capacity
        if self.reserved_bytes + size <= target:
            return
        excess = self.reserved_bytes + size - target
        large = [b for p in self._pools.values() if not p.is_small for _, _, b in p.free]
        for block in sorted(large, key=lambda b: b.age):
            if excess <= 0:
                return
            excess -= self._release(block)


def round_size(size: int, divisions: int = 0) -> int:
    """Bytes that a request takes: a multiple of 512, at least 512; with `divisions`, a step between powers of two."""
    # CUDACachingAllocator.cpp, round_size and roundup_power2_next_division
    if divisions > 1 and size > MIN_BLOCK_BYTES * divisions:
        power = 1 << (size.bit_length() - 1)
        step = max(1, power // divisions)
        return -(-size // step) * step
    return max(MIN_BLOCK_BYTES, -(-size // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES)


def segment_size(rounded: int) -> int:
    """Bytes asked of the driver for a request that no cached block can serve."""
    # CUDACachingAllocator.cpp, get_allocation_size
    if rounded <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded < MIN_LARGE_ALLOCATION_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-rounded // LARGE_ROUNDING_BYTES) * LARGE_ROUNDING_BYTES


def _cut(block: MemoryBlock, size: int) -> MemoryBlock:
    """Shorten `block` to `size`; returns the rest, linked behind it and in no pool."""
    rest = MemoryBlock(
        block.address + size, block.size - size, block.pool, block.segment,
        is_mapped=block.is_mapped, before=block, after=block.after, age=block.age,
    )  # fmt: skip
    if block.after is not None:
        block.after.before = rest
    block.after, block.size = rest, size
    return rest


def _merge(one: MemoryBlock, other: MemoryBlock) -> MemoryBlock:
    """One free block out of two neighbours; the lower address survives."""
    low, high = (one, other) if one.address < other.address else (other, one)
    low.size += high.size
    low.age = max(low.age, high.age)
    low.after = high.after
    if high.after is not None:
        high.after.before = low
    return low


def _reach(block: MemoryBlock) -> int:
    """Bytes that a free block could grow to without moving."""
    after = block.after
    return block.size + (after.size if after is not None and not after.is_mapped else 0)


def _run_start(hole: MemoryBlock, size: int) -> MemoryBlock | None:
    """The block before or at an unmapped one from which `size` bytes are free or unmapped in a row; None if fewer."""
    start = hole.before if hole.before is not None and hole.before.is_free else hole
    run_bytes, block = 0, start
    while block is not None and block.is_free and run_bytes < size:
        run_bytes += block.size
        block = block.after
    return start if run_bytes >= size else None
