"""The allocator against rules of its source and, with random programs, against its invariants."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.memory.allocator import CachingAllocator, OutOfMemory, round_size, segment_size
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
    with pytest.raises(OutOfMemory):
        allocator.allocate(2, 4 * MIB)


@given(PROGRAMS)
def test_random_programs_keep_the_invariants(program):
    """A positive number allocates that many bytes, a negative one frees the live storage at that index."""
    allocator = CachingAllocator()
    live: dict[int, int] = {}
    for key, action in enumerate(program):
        if action > 0:
            allocator.allocate(key, action)
            live[key] = action
        elif live:
            allocator.free(victim := list(live)[action % len(live)])
            del live[victim]
        assert sum(map(round_size, live.values())) <= allocator.allocated_bytes <= allocator.reserved_bytes
        assert allocator.reserved_bytes == sum(allocator._segments.values())
        _check_blocks(allocator)
    for key in list(live):
        allocator.free(key)
    assert allocator.allocated_bytes == 0
    allocator.flush()
    assert allocator.reserved_bytes == 0


def _check_blocks(allocator: CachingAllocator) -> None:
    """Free and live blocks tile every segment, and no two free neighbours are left unmerged."""
    free = [entry[2] for pool in (allocator._small, allocator._large) for entry in pool.free]
    blocks = [*free, *allocator._live.values()]
    assert sum(block.size for block in blocks) == allocator.reserved_bytes
    for block in free:
        assert block.is_free
        assert not any(n is not None and n.is_free for n in (block.before, block.after))
    for block in blocks:
        if block.after is not None:
            assert block.address + block.size == block.after.address
            assert block.after.before is block
