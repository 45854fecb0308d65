"""Histories of random programs: no address is used twice at a time, and nothing is left out of the account."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import NotSupported
from forerun.memory.allocator import AllocatorOptions, CachingAllocator
from forerun.memory.history import RecordingAllocator, play_history
from forerun.memory.replay import replay_memory
from forerun.trace import ALLOCATE, FREE, Phase, Storage, Trace
from forerun.units import MIB

SIZES = st.sampled_from([0, 1, 500, 512, 4000, 700_000, MIB, MIB + 1, 3 * MIB, 11 * MIB, 25 * MIB])
PROGRAMS = st.lists(st.tuples(SIZES, st.integers(0, 1), st.booleans()), min_size=1, max_size=60)


def trace_of(program):
    """Each entry allocates its bytes on its stream, and frees the oldest storage before it where it says so."""
    trace, live = Trace(), []
    for size, stream, frees in program:
        if frees and live:
            trace.events.append((FREE, live.pop(0)))
        live.append(len(trace.storages))
        trace.events.append((ALLOCATE, len(trace.storages)))
        trace.storages.append(Storage(size, Phase.FORWARD, stream=stream))
    return trace


def overlapping(pieces):
    """Pairs of (address, size) that share an address."""
    pieces = sorted(pieces)
    return [(one, other) for one, other in zip(pieces, pieces[1:], strict=False) if one[0] + one[1] > other[0]]


def check(entries):
    """Play the entries as a reader would; every address belongs to one block of one segment."""
    segments, blocks, waiting = {}, {}, {}
    for entry in entries:
        if entry.action == "segment_alloc":
            segments[entry.address] = entry.size
        elif entry.action == "segment_free":
            assert segments.pop(entry.address) == entry.size
        elif entry.action == "alloc":
            blocks[entry.address] = entry.size
            assert any(base <= entry.address and entry.address + entry.size <= base + size
                       for base, size in segments.items())  # fmt: skip
        elif entry.action == "free_requested":
            waiting[entry.address] = blocks.pop(entry.address)
        elif entry.action == "free_completed":
            assert waiting.pop(entry.address) == entry.size
        assert overlapping(segments.items()) == overlapping(blocks.items()) == []
    return segments, blocks


@given(PROGRAMS, st.sampled_from([None, 64 * MIB]))
def test_addresses_are_used_once_at_a_time(program, capacity):
    trace = trace_of(program)
    history = play_history(trace, capacity_bytes=capacity)
    segments, blocks = check(history.entries)
    assert {segment.address: segment.size for segment in history.segments} == segments
    used = [block for segment in history.segments for block in segment.blocks if block.storage is not None]
    assert {block.address: block.requested_size for block in used} == blocks
    for segment in history.segments:
        address = segment.address
        for block in segment.blocks:
            assert block.address == address
            address += block.size
        assert address == segment.address + segment.size


@given(PROGRAMS)
def test_both_curves_are_those_of_the_replay(program):
    trace = trace_of(program)
    history = play_history(trace, workspace_bytes=[2 * MIB])
    replay = replay_memory(trace, workspace_bytes=[2 * MIB], passes=1)
    assert max(allocated for _, allocated, _ in history.curve) == replay.peak_allocated_bytes
    assert max(reserved for _, _, reserved in history.curve) == replay.peak_reserved_bytes


def test_the_cache_goes_back_before_a_request_fails():
    trace = trace_of([(25 * MIB, 0, False), (30 * MIB, 0, True)])
    actions = [entry.action for entry in play_history(trace, capacity_bytes=40 * MIB).entries]
    assert actions == ["segment_alloc", "alloc", "free_requested", "free_completed",
                       "segment_free", "segment_alloc", "alloc"]  # fmt: skip


def test_a_request_that_failed_stands_where_it_failed():
    trace = trace_of([(25 * MIB, 0, False), (3 * MIB, 0, False)])
    trace.failures = [(1, 30 * MIB)]
    entries = play_history(trace, capacity_bytes=50 * MIB).entries
    assert [entry.action for entry in entries] == ["segment_alloc", "alloc", "oom", "segment_alloc", "alloc"]
    (failure,) = [entry for entry in entries if entry.action == "oom"]
    assert (failure.size, failure.free_bytes, entries.index(failure)) == (30 * MIB, 24 * MIB, 2)
    assert [entry.action for entry in play_history(trace, capacity_bytes=40 * MIB, stop=1).entries][-1] == "oom"


def test_a_card_that_is_too_small_here_is_played_without_end():
    trace = trace_of([(25 * MIB, 0, False), (30 * MIB, 0, False)])
    assert play_history(trace, capacity_bytes=40 * MIB).curve[-1] == (1, 56 * MIB, 56 * MIB)
    with pytest.raises(NotSupported, match="expandable"):
        RecordingAllocator(options=AllocatorOptions(expandable_segments=True))


def test_it_is_the_simulated_allocator():
    plain, recording = CachingAllocator(), RecordingAllocator()
    for allocator in (plain, recording):
        for key, size in enumerate([3 * MIB, 700, 12 * MIB, 5 * MIB]):
            allocator.allocate(key, size)
        allocator.free(0)
        allocator.flush()
        allocator.allocate(9, 2 * MIB)
    assert plain.reserved_bytes == recording.reserved_bytes
    assert plain.allocated_bytes == recording.allocated_bytes
