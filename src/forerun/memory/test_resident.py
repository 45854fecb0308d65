import pytest

from forerun.memory.resident import resident_bytes
from forerun.units import GIB, MIB

RUNS = {
    "code-detector, 8 lengths, least": (219, 8, 328),
    "code-detector, 8 lengths, most": (219, 8, 383),
    "code-detector, 27 lengths, least": (219, 27, 491),
    "code-detector, 27 lengths, most": (219, 27, 569),
    "triplets, 2 layers, run of 61 steps": (1444, 15, 2109),
    "triplets, 2 layers, 64 steps of any length": (1425, 61, 2132),
    "triplets, 6 layers, 18 steps of any length": (2042, 31, 2907),
}
"""Modelled heap of the longest step, lengths, and bytes resident beyond those before training; MiB, two cores and one
(docs/log.md, 2026-11-21 and 2026-11-28)."""


@pytest.mark.parametrize("run", RUNS)
def test_what_runs_kept_resident_is_in_the_range_and_near_its_middle(run):
    heap, lengths, measured = RUNS[run]
    band = resident_bytes(0, heap * MIB, lengths)
    assert band.optimistic <= measured * MIB <= band.conservative
    assert band.expected == pytest.approx(measured * MIB, rel=0.25)


def test_a_further_length_costs_as_much_beside_any_heap():
    """In proportion to the heap, 24 lengths of 8 GiB came to 25 GiB, and MiniLM was refused on 23.5 GiB."""
    small, large = (
        resident_bytes(0, heap, 24).conservative - resident_bytes(0, heap, 1).conservative for heap in (1, GIB)
    )
    assert small == pytest.approx(large)
    assert small > 100 * MIB
    assert resident_bytes(0.6 * GIB, 7.74 * GIB, 24).conservative < 15.5 * GIB


def test_without_known_lengths_there_is_one():
    assert resident_bytes(5, 100, 0) == resident_bytes(5, 100, 1)
