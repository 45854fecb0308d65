"""What a CPU process keeps resident while it trains, from the heap that one step is modelled to need.

glibc keeps what is freed (`hardware/host_memory.py`), so the heap of the longest step stays, and a share of it that its
order of allocations costs. Each further length of batches adds to that, and not in proportion to the heap: small
allocations of Python between tensors, and what libraries keep for a shape.

Not covered: the order that a run really has, threads' own arenas.
"""

from forerun.records import Range
from forerun.units import MIB

ONE_LENGTH = (1.05, 1.2, 1.8)
"""Resident over modelled bytes of a heap, beside what the process had before: six steps of one length had 1.07 to 1.39,
one whose optimizer makes temporaries inside a library 1.70 (docs/log.md, 2026-11-21)."""
FURTHER_LENGTH_BYTES = (0, 13 * MIB, 20 * MIB)
"""Added for each further length: runs of 8 to 61 lengths with heaps of 0.3 to 2.1 GiB had 4 to 27 MiB a length beside
1.2 times their heap (docs/log.md, 2026-11-28; `test_resident.py`)."""


def resident_bytes(before_bytes: float, heap_bytes: float, lengths: int) -> Range:
    """Bytes resident at most during a run over batches of `lengths` different lengths, in a process that had some."""
    further = max(1, lengths) - 1
    low, middle, high = (
        before_bytes + heap_bytes * share + further * more
        for share, more in zip(ONE_LENGTH, FURTHER_LENGTH_BYTES, strict=True)
    )
    return Range(optimistic=low, expected=middle, conservative=high)
