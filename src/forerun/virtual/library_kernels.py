"""Real kernels behind the stand-ins for bitsandbytes, so that they can be timed on the device at hand.

The virtual GPU records `forerun.dequantize_4bit` and its like; here they run what the library runs for them.
"""

from typing import Any

import torch
from torch import Tensor

from forerun.step import eight_bit, quantization  # noqa: F401 (they define the operators)
from forerun.step.quantization import BLOCK, SCALE_BLOCK

PLACES = ("cpu", "cuda")
STEP, RATE, BETAS, EPSILON = 2, 1e-6, (0.9, 0.999), 1e-8
_BY_MOMENTS = {1: "lion", 2: "adam"}
_registered = False


def register() -> None:
    """Give the stand-ins their kernels; without bitsandbytes they keep having none."""
    global _registered
    if _registered:
        return
    try:
        import bitsandbytes.functional as library
    except ImportError:
        return
    kernels = torch.ops.bitsandbytes

    def dequantize_4bit(packed: Tensor, scales: Tensor, shape: list[int], dtype: torch.dtype) -> Tensor:
        return kernels.dequantize_4bit(packed, scales, BLOCK, "nf4", shape, dtype)

    def dequantize_scales(scales: Tensor, outer: Tensor) -> Tensor:
        code = library.create_dynamic_map().to(scales.device)
        return kernels.dequantize_blockwise(scales, outer, code, SCALE_BLOCK, torch.float32)

    def quantize_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
        whole, scales, _ = kernels.int8_vectorwise_quant(rows, 0.0)
        return whole, scales

    def read_flag(flag: Tensor) -> None:
        bool(flag)

    def multiply_int8(rows: Tensor, weight: Tensor) -> Tensor:
        return kernels.int8_linear_matmul(rows, weight)

    def update_32bit_(parameter: Tensor, gradient: Tensor, moments: list[Tensor]) -> None:
        library.optimizer_update_32bit(
            _BY_MOMENTS[len(moments)], gradient, parameter, moments[0], BETAS[0], EPSILON, STEP, RATE,
            moments[1] if len(moments) > 1 else None, BETAS[1],
        )  # fmt: skip

    def update_8bit_(
        parameter: Tensor, gradient: Tensor, moments: list[Tensor], scales: list[Tensor], code: Tensor
    ) -> None:
        more: Any = (moments[1], code, scales[1]) if len(moments) > 1 else (None, None, None)
        library.optimizer_update_8bit_blockwise(
            _BY_MOMENTS[len(moments)], gradient, parameter, moments[0], more[0], *BETAS, 0.0, 0.0, EPSILON, STEP,
            RATE, code, more[1], scales[0], more[2],
        )  # fmt: skip

    for kernel in (
        dequantize_4bit, dequantize_scales, quantize_rows, read_flag, multiply_int8, update_32bit_, update_8bit_,
    ):  # fmt: skip
        torch.library.impl(f"forerun::{kernel.__name__}", PLACES)(kernel)
    _registered = True
