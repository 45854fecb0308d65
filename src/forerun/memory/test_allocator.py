"""The allocator against rules of its source and, with random programs, against its invariants."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.memory.allocator import AllocatorOptions, CachingAllocator, SimulatedOutOfMemory, round_size, segment_size
from forerun.units import KIB, MIB

SIZES = st.one_of(st.integers(1, 2 * MIB), st.integers(1, 64 * MIB), st.sampled_from([512, MIB, MIB + 1, 10 * MIB]))
PROGRAMS = st.lists(st.one_of(SIZES, st.integers(-40, -1)), max_size=120)


@pytest.mark.parametrize(("size", "rounded"), [(1, 512), (512, 512), (513, 1024), (MIB, MIB)])
def test_requests_round_to_512_bytes(size, rounded):
    assert round_size(size) == rounded


@pytest.mark.parametrize(
    ("size", "segment"),
    [(512, 2 * MIB), (MIB, 2 * MIB), (MIB + 512, 20 * MIB), (10 * MIB - 512, 20 * MIB), (10 * MIB, 10 * MIB),
     (10 * MIB + 512, 12 * MIB), (21 * MIB, 22 * MIB)],
)  # fmt: skip
def test_segment_sizes(size, segment):
    assert segment_size(size) == segment


def test_small_requests_share_a_segment():
    allocator = CachingAllocator()
    for key in range(4):
        allocator.allocate(key, 512 * KIB)
    assert allocator.reserved_bytes == 2 * MIB
    allocator.allocate(4, 1)
    assert allocator.reserved_bytes == 4 * MIB


def test_freed_block_is_used_again_and_split():
    allocator = CachingAllocator()
    allocator.allocate(0, 16 * MIB)
    allocator.free(0)
    allocator.allocate(1, 4 * MIB)
    allocator.allocate(2, 12 * MIB)
    assert allocator.reserved_bytes == 16 * MIB


def test_large_block_keeps_a_remainder_of_one_mebibyte():
    allocator = CachingAllocator()
    allocator.allocate(0, 12 * MIB)
    allocator.free(0)
    allocator.allocate(1, 11 * MIB)
    assert allocator.allocated_bytes == 12 * MIB


def test_best_fit_takes_the_smallest_block():
    allocator = CachingAllocator()
    for key, size in enumerate((40 * MIB, 12 * MIB)):
        allocator.allocate(key, size)
    for key in (0, 1):
        allocator.free(key)
    allocator.allocate(2, 11 * MIB + 512 * KIB)
    allocator.allocate(3, 40 * MIB)
    assert allocator.reserved_bytes == 52 * MIB


def test_full_device_flushes_and_tries_again():
    allocator = CachingAllocator(capacity_bytes=32 * MIB)
    allocator.allocate(0, 20 * MIB)
    allocator.free(0)
    allocator.allocate(1, 30 * MIB)
    assert allocator.flushes == 1
    with pytest.raises(SimulatedOutOfMemory):
        allocator.allocate(2, 4 * MIB)


def test_expandable_segments_leave_no_holes_between_growing_requests():
    """Sizes that grow strand cached segments; a range that grows keeps one (the reason for the option)."""
    reserved = []
    for options in (AllocatorOptions(), AllocatorOptions(expandable_segments=True)):
        allocator = CachingAllocator(options=options)
        for key in range(10):
            allocator.allocate(key, (20 + 4 * key) * MIB)
            allocator.free(key)
        reserved.append(allocator.reserved_bytes)
    assert reserved == [sum((20 + 4 * k) * MIB for k in range(10)), 60 * MIB]


def test_expandable_segments_split_to_the_byte():
    allocator = CachingAllocator(options=AllocatorOptions(expandable_segments=True))
    allocator.allocate(0, 12 * MIB)
    allocator.free(0)
    allocator.allocate(1, 11 * MIB)
    assert allocator.allocated_bytes == 11 * MIB
    assert allocator.reserved_bytes == 20 * MIB


def test_expandable_segments_unmap_whole_pages_only():
    allocator = CachingAllocator(options=AllocatorOptions(expandable_segments=True))
    for key in range(3):
        allocator.allocate(key, 30 * MIB)
    allocator.free(1)
    allocator.flush()
    assert allocator.reserved_bytes == 80 * MIB  # bytes 30 to 60 are free: the page from 40 to 60 goes
    allocator.allocate(3, 30 * MIB)
    assert allocator.reserved_bytes == 100 * MIB


def test_split_limit_keeps_large_blocks_whole():
    allocator = CachingAllocator(options=AllocatorOptions(max_split_bytes=64 * MIB))
    allocator.allocate(0, 100 * MIB)
    allocator.free(0)
    allocator.allocate(1, 20 * MIB)
    assert allocator.reserved_bytes == 120 * MIB  # too small for the cached block
    allocator.allocate(2, 90 * MIB)
    assert allocator.allocated_bytes == 120 * MIB  # given whole: 10 MiB too many are within the rounding of 20


def test_garbage_collection_returns_the_oldest_first():
    options = AllocatorOptions(garbage_collection_threshold=0.5)
    allocator = CachingAllocator(capacity_bytes=200 * MIB, options=options)
    for key, size in enumerate((30 * MIB, 40 * MIB)):
        allocator.allocate(key, size)
        allocator.free(key)
    allocator.allocate(2, 50 * MIB)
    assert allocator.reserved_bytes == 90 * MIB  # 30 went, 40 stayed
    assert allocator.flushes == 0


def test_streams_do_not_share_blocks():
    allocator = CachingAllocator()
    allocator.allocate(0, 20 * MIB, stream=0)
    allocator.free(0)
    allocator.allocate(1, 20 * MIB, stream=1)
    assert allocator.reserved_bytes == 40 * MIB


@pytest.mark.parametrize(("size", "rounded"), [(4800, 5120), (4096, 4096), (4097, 5120), (1200, 1536)])
def test_division_of_powers_of_two(size, rounded):
    """Four divisions between 4,096 and 8,192 are 1,024 apart; up to 512 times the divisions it is 512 as ever."""
    assert round_size(size, 4) == rounded


OPTIONS = st.builds(
    AllocatorOptions,
    expandable_segments=st.booleans(),
    max_split_bytes=st.sampled_from([None, 24 * MIB, 100 * MIB]),
    garbage_collection_threshold=st.sampled_from([0.0, 0.6]),
    roundup_divisions=st.sampled_from([0, 4]),
)


@given(PROGRAMS, OPTIONS, st.sampled_from([None, 128 * MIB]))
def test_random_programs_keep_the_invariants(program, options, capacity):
    """A positive number allocates that many bytes, a negative one frees the live storage at that index."""
    allocator = CachingAllocator(capacity, options)
    live: dict[int, int] = {}
    for key, action in enumerate(program):
        if action > 0:
            try:
                allocator.allocate(key, action, stream=key % 2)
            except SimulatedOutOfMemory:
                assert capacity is not None
                continue
            live[key] = action
        elif live:
            allocator.free(victim := list(live)[action % len(live)])
            del live[victim]
        assert sum(map(round_size, live.values())) <= allocator.allocated_bytes <= allocator.reserved_bytes
        assert allocator.reserved_bytes == sum(allocator._segments.values()) <= (capacity or allocator.reserved_bytes)
        _check_blocks(allocator)
    for key in list(live):
        allocator.free(key)
    assert allocator.allocated_bytes == 0
    allocator.flush()
    assert allocator.reserved_bytes == 0


def _check_blocks(allocator: CachingAllocator) -> None:
    """Free and live blocks tile every segment, and no two free neighbours are left unmerged."""
    free = [entry[2] for pool in allocator._pools.values() for entry in pool.free]
    holes = [entry[1] for pool in allocator._pools.values() for entry in pool.unmapped]
    blocks = [*free, *allocator._live.values()]
    assert sum(block.size for block in blocks) == allocator.reserved_bytes
    for block in [*free, *holes]:
        assert block.is_free
        alike = [n for n in (block.before, block.after) if n is not None and n.is_free]
        assert not any(n.is_mapped == block.is_mapped for n in alike)
    for block in [*blocks, *holes]:
        if block.after is not None:
            assert block.address + block.size == block.after.address
            assert block.after.before is block
