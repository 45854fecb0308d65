"""How long one operator call takes: the interface of all cost models, and figures that several share."""

from dataclasses import dataclass
from typing import Protocol

from forerun.hardware.catalogue import Device
from forerun.trace import FACTORS, Call
from forerun.units import MICRO

KERNEL_SECONDS = 4 * MICRO
"""Fixed time of a kernel on the device: of BF16 products on nine GPUs (NVIDIA AIConfigurator data)."""
EFFICIENT_SHARE_OF_FLASH = 0.5
"""Memory-efficient against flash attention; FlashAttention-2 (Dao 2023, arXiv:2307.08691, abstract) is about twice as
fast as its peers."""
TF32_PRODUCTS_OF_FLOAT32 = 3
"""Products in TF32 that stand for one in float32 in the memory-efficient kernel, from compute capability 8.0 on:
`OpMultiplyAddFastF32` in `mem_eff_attention/gemm_kernel_utils.h` (PyTorch 2.13), CUTLASS's 3xTF32."""
ATTENTION = (
    "scaled_dot_product_flash", "scaled_dot_product_efficient", "scaled_dot_product_cudnn", "._flash_attention_",
    "._efficient_attention_", ".flex_attention_forward", ".flex_attention_backward",
)  # fmt: skip
"""Parts of the names of fused attention kernels."""
HALF_CAUSAL = ("flash", "cudnn", "efficient")
"""Those that skip the masked half of causal attention; the memory-efficient one by ending at the last key of a block of
queries (mem_eff_attention/kernel_forward.h:289, PyTorch 2.13) and beginning at the first query of one of keys
(kernel_backward.h:2281)."""
CAUSAL_ARGUMENT = {
    "_scaled_dot_product_flash_attention": 4, "_scaled_dot_product_flash_attention_backward": 11,
    "_scaled_dot_product_flash_attention_for_cpu": 4, "_scaled_dot_product_flash_attention_for_cpu_backward": 7,
    "_scaled_dot_product_efficient_attention": 6, "_scaled_dot_product_efficient_attention_backward": 11,
    "_scaled_dot_product_cudnn_attention": 6, "_scaled_dot_product_cudnn_attention_backward": 14,
    "_efficient_attention_forward": 9, "_efficient_attention_backward": 14,
    "_flash_attention_forward": 8, "_flash_attention_backward": 11,
    "_flash_attention_2_forward": 9, "_flash_attention_2_backward": 13,
    "_flash_attention_3_forward": 9, "_flash_attention_3_backward": 13,
}  # fmt: skip
"""Place of `is_causal` among the arguments, by the operator's schema; a test asks PyTorch for them."""
WINDOWED = "forerun._flash_attention_"
"""Operators whose two arguments after `is_causal` bound a sliding window; their FLOP count only what is inside it."""


def attention_peak(device: Device, dtype: str, *, is_efficient: bool) -> float:
    """FLOP/s of the units that an attention kernel computes on: of its dtype, or for float32 of tensor cores."""
    peak = device.peak(dtype)
    if dtype == "float32" and is_efficient:
        return max(peak, device.peak_flops_per_second.get("tfloat32", 0.0) / TF32_PRODUCTS_OF_FLOAT32)
    return peak


def factors_dtype(call: Call) -> str:
    """Dtype that a call multiplies in: what its kernel states, or that of its first floating input."""
    stated = dict(call.keywords).get(FACTORS)
    floating = [spec.dtype for spec in call.inputs if "float" in spec.dtype]
    return stated or (floating[0] if floating else call.inputs[0].dtype if call.inputs else "float32")


class Costs(Protocol):
    """Seconds of an operator call on one device."""

    @property
    def description(self) -> str:
        """Where the rates come from, for the reader of a forecast."""
        ...

    @property
    def evidence(self) -> str:
        """What the rates rest on, a key of the forecast's table of ranges."""
        ...

    @property
    def is_host(self) -> bool:
        """The operators run on the host itself: there is one timeline, not two."""
        ...

    def device_seconds(self, call: Call) -> float:
        """Time of the kernels of one call."""
        ...

    def host_seconds(self, call: Call) -> float:
        """Time in which the host issues it."""
        ...


@dataclass(frozen=True)
class CostsAround:
    """Costs that are those inside, but for what a subclass changes."""

    costs: Costs

    @property
    def description(self) -> str:
        """As of the costs inside."""
        return self.costs.description

    @property
    def evidence(self) -> str:
        """As of the costs inside."""
        return self.costs.evidence

    @property
    def is_host(self) -> bool:
        """As of the costs inside."""
        return self.costs.is_host

    def device_seconds(self, call: Call) -> float:
        """As of the costs inside."""
        return self.costs.device_seconds(call)

    def host_seconds(self, call: Call) -> float:
        """As of the costs inside."""
        return self.costs.host_seconds(call)
