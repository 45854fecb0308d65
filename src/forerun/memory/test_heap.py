"""The host's heap against invariants: chunks never overlap, free neighbours merge, and the top only rises."""

from hypothesis import given
from hypothesis import strategies as st

from forerun.memory.heap import ALIGNMENT, Heap

MIB = 2**20


def overlaps(heap):
    chunks = sorted([*heap._chunks.values(), *((a, s) for a, s in heap._free_from.items())])
    return any(start + size > after for (start, size), (after, _) in zip(chunks, chunks[1:], strict=False))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.integers(0, 3 * MIB)), max_size=60))
def test_any_program_keeps_the_invariants(program):
    heap, live, top = Heap(), {}, 0
    for allocates, key, size in program:
        if allocates and key not in live:
            heap.allocate(key, size)
            live[key] = size
        elif key in live:
            heap.free(key)
            del live[key]
        assert not overlaps(heap)
        assert heap.peak_reserved_bytes >= max(top, sum(live.values()))
        top = heap.peak_reserved_bytes
    assert all(size <= heap.block_bytes(key) < size + ALIGNMENT for key, size in live.items())
    ends = {a + s for a, s in heap._free_from.items()}
    assert not ends & set(heap._free_from), "free neighbours are one"


def test_what_is_freed_is_used_again():
    heap = Heap()
    for key in range(50):
        heap.allocate(key, MIB)
        heap.free(key)
    assert heap.peak_reserved_bytes < 1.1 * MIB


def test_a_hole_that_is_too_small_stays():
    heap = Heap()
    for key in range(3):
        heap.allocate(key, MIB)
    heap.free(1)
    heap.allocate(3, 2 * MIB)
    assert heap.peak_reserved_bytes >= 5 * MIB
    heap.allocate(4, MIB // 2)
    assert heap.peak_reserved_bytes < 5.1 * MIB, "the hole is taken"


def test_a_new_name_keeps_the_bytes():
    heap = Heap()
    heap.allocate(1, 1000)
    heap.rename(1, 2)
    assert (heap.block_bytes(1), heap.block_bytes(2)) == (0, 1024)
    heap.free(2)
    assert heap.block_bytes(2) == 0
