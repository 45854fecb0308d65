"""Buffers of reductions, against what an H100's allocator gave them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.hardware.catalogue import device
from forerun.memory.reductions import resident_threads, sized_for, staging_bytes
from forerun.trace import ALLOCATE, FREE, PARTIAL_BYTES, Category, Phase, Storage, Trace

H100 = resident_threads(device("h100-80gb"))


@pytest.mark.golden
@pytest.mark.parametrize(
    ("outputs", "inputs", "measured"),
    [(1600, 16_384, 133_529_600), (6400, 16_384, 140_902_400), (4800, 16_384, 137_625_600), (33_278, 4480, 25_557_504)],
)
def test_buffers_are_those_of_a_real_card(outputs, inputs, measured):
    """Of two programs of `benchmarks/truth` (`tests/golden/allocator-h100`); the last has two outputs a thread."""
    assert staging_bytes(outputs, inputs, H100) == measured


@pytest.mark.parametrize(("outputs", "inputs"), [(1600, 256), (2_000_000, 16_384), (1600, 1)])
def test_short_or_wide_reductions_are_not_split(outputs, inputs):
    assert staging_bytes(outputs, inputs, H100) == 0


@given(st.integers(1, 10**6), st.integers(1, 10**7), st.sampled_from([0, 40_960, 196_608, H100]))
def test_a_buffer_never_exceeds_a_few_sets_for_each_thread(outputs, inputs, threads):
    """Each resident thread writes at most four outputs, and the last blocks of a grid may hold twice as many threads."""
    most = max(4 * 2 * threads, outputs * -(-inputs // 256)) * 128
    assert 0 <= staging_bytes(outputs, inputs, threads) <= PARTIAL_BYTES * most


def test_a_trace_gets_the_bytes_of_its_card():
    storages = [Storage(8, Phase.FORWARD), Storage(1600 * 4, Phase.BACKWARD, Category.TEMPORARY, reduces=16_384)]
    trace = Trace(storages=storages, events=[(ALLOCATE, 0), (ALLOCATE, 1), (FREE, 1), (FREE, 0)])
    sizes = {name: [s.bytes for s in sized_for(trace, device(name)).storages] for name in ("h100-80gb", "t4", "mi300x")}
    assert sizes["h100-80gb"] == [8, 133_529_600]
    assert sizes["t4"] == [8, 1600 * 4 * 128 * -(-40 * 8 // 13)]
    assert sizes["mi300x"] == [8, 0], "not covered"
    plain = replace(trace, storages=storages[:1])
    assert sized_for(plain, device("t4")) is plain
