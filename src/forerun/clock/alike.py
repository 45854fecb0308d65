"""Which measured GPU another one is like: its architecture, and what its tensor cores do in a cycle."""

import math
from collections.abc import Collection, Iterable

from forerun.hardware.catalogue import Device, devices_named

HELD_BACK = frozenset({"t4", "l4", "rtx-a2000-12gb"})
"""Measured GPUs that are an example only for boards of as few watts: theirs, 70 and 72, hold tensor cores back."""
FEW_WATTS = 80
"""Power limit of a board up to which it is held back like these."""
SAME_RATE = math.log(1.4)
"""Logarithm of the ratio of two rates that are still one: clocks of datasheets differ, half the rate does not count."""
HALF_RATE = 768
"""FLOP a cycle of a multiprocessor with 16-bit factors below which tensor cores sum FP32 at half their rate: 512 of
GeForce boards, A10G and L20 against 1,024 of others since Turing."""


def measured_like(gpu: Device, names: Iterable[str], dtype: str = "float16") -> str | None:
    """Name of a measured GPU: this one, else the nearest in multiprocessors of its architecture and rate; or None.

    The rate is FLOP a cycle of a multiprocessor in `dtype`. Where it is half of what others of the architecture have,
    nothing but the tensor cores holds a product back; at the full rate power and memory do.
    """
    if gpu.name in names:
        return gpu.name
    alike = [row for row in devices_named(names) if row.compute_capability == gpu.compute_capability]
    alike = [row for row in alike if abs(math.log(rate(row, dtype) / rate(gpu, dtype))) < SAME_RATE]
    if not alike:
        return None
    return min(alike, key=lambda row: abs((row.sm_count or 0) - (gpu.sm_count or 0))).name


def example_of(gpu: Device, names: Iterable[str], dtype: str = "float16") -> str | None:
    """As `measured_like`, but boards that their power holds back only for their like."""
    is_held_back = gpu.board_watts is not None and gpu.board_watts <= FEW_WATTS
    return measured_like(gpu, [n for n in names if is_held_back or n == gpu.name or n not in HELD_BACK], dtype)


def passing_memory_like(gpu: Device, names: Collection[str]) -> str | None:
    """Name of the GPU of `names` whose measured share of bandwidth is this one's; None where there is no example.

    Bits of error correction in GDDR memory are read and written beside the data: an A10G passes 467 of its 600 GB/s
    while its memory is busy for 92 % of the time (`benchmarks/priors/copies.csv`). Boards with and without them are no
    examples for each other.
    """
    if gpu.inline_ecc:
        return gpu.name if gpu.name in names else None
    return measured_like(gpu, [row.name for row in devices_named(names) if not row.inline_ecc], "float32")


def rate(gpu: Device, dtype: str) -> float:
    """FLOP a cycle of a multiprocessor; of FP32 where the GPU has no `dtype`."""
    peaks = gpu.peak_flops_per_second
    return peaks.get(dtype, peaks["float32"]) / (gpu.sm_count or 1) / gpu.boost_clock_hertz


def has_half_rate(gpu: Device) -> bool:
    """Whether its tensor cores sum FP32 at half their rate."""
    return gpu.has_tensor_cores and rate(gpu, "float16") < HALF_RATE
