"""Timed products as the fits take them: rows of batch, m, n, k and seconds."""

import numpy as np

from forerun.clock.products import Array, Chip, Products
from forerun.hardware.catalogue import device


def chip_of(name: str, dtype: str) -> Chip:
    """A GPU of the catalogue."""
    gpu = device(name)
    count, l2 = gpu.sm_count or 1, gpu.l2_bytes or 1
    return Chip(gpu.peak(dtype), gpu.bandwidth_bytes_per_second or 1, count, l2, gpu.boost_clock_hertz)


def products(rows: Array, width: float) -> Products:
    """Rows as products measured with weights that may be cached."""
    batch, m, n, k = (np.ascontiguousarray(rows[:, i]) for i in range(4))
    return Products(batch, m, n, k, width, is_cached=True)


def some(rows: Array, count: int, random: np.random.Generator) -> Array:
    """At most `count` rows, drawn at random."""
    return rows[random.choice(len(rows), min(len(rows), count), replace=False)]
