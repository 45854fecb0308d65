"""What programs compare with: bytes that libraries have in their tables."""

import pytest

from forerun.hardware.multiprocessors import shared_bytes_of_block, threads


@pytest.mark.parametrize(
    ("capability", "shared", "most"),
    [((6, 0), 49152, 2048), ((7, 5), 65536, 1024), ((8, 0), 166912, 2048), ((8, 6), 101376, 1536),
     ((8, 9), 101376, 1536), ((9, 0), 232448, 2048), ((12, 0), 101376, 1536),
     ((12, 1), 101376, 1536)],
)  # fmt: skip
def test_blocks_of_threads(capability, shared, most):
    """101,376, 166,912 and 232,448 are what flash-linear-attention asks for (`fla/utils/hardware.py`, 0.6)."""
    assert (shared_bytes_of_block(capability), threads(capability)) == (shared, most)
