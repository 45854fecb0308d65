"""How long one operator call takes: the interface of all cost models, and the one from a datasheet.

`DatasheetCosts` is the uncalibrated first guess: the larger of arithmetic and memory time at a *stated* share of the
datasheet peak, plus a fixed time per kernel. Shares and times are named below with their source; forecasts made with
them say that they are uncalibrated.

Not covered: L2 reuse between operators, tile and wave quantisation, power limits.
"""

from dataclasses import dataclass
from typing import Protocol

from forerun.hardware.catalogue import Device
from forerun.trace import Call
from forerun.units import MICRO

MATMUL_COMPUTE_SHARE = 0.75
"""Of peak; with the two below 10.6 % mean error on 101,705 BF16 GEMMs on nine GPUs (NVIDIA AIConfigurator data)."""
BANDWIDTH_SHARE = 0.90
"""Of datasheet bandwidth, same data."""
KERNEL_SECONDS = 4 * MICRO
"""Fixed time of a kernel on the device, same data."""
ATTENTION_FORWARD_SHARE, ATTENTION_BACKWARD_SHARE = 0.6, 0.5
"""Of peak; FlashAttention-2 reports 50 to 73 % on an A100 (Dao 2023, arXiv:2307.08691, abstract and section 4.1)."""
EFFICIENT_SHARE_OF_FLASH = 0.5
"""Memory-efficient against flash attention; FlashAttention-2 (same, abstract) is about twice as fast as its peers."""
OPERATOR_HOST_SECONDS = 8 * MICRO
"""Host time to issue one operator from eager Python; stated, not fitted."""
VIEW_HOST_SECONDS = 2 * MICRO
"""Host time of an operator that launches no kernel; stated, not fitted."""

ATTENTION = ("scaled_dot_product_flash", "scaled_dot_product_efficient", "scaled_dot_product_cudnn")
HALF_CAUSAL = ("flash", "cudnn")


class Costs(Protocol):
    """Seconds of an operator call on one device."""

    @property
    def description(self) -> str:
        """Where the rates come from, for the reader of a forecast."""
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
class DatasheetCosts:
    """Datasheet × stated efficiency."""

    device: Device
    tf32: bool = False
    is_host: bool = False
    description: str = "datasheet × stated efficiency, uncalibrated"

    def host_seconds(self, call: Call) -> float:
        """Time to issue the call from eager Python."""
        return VIEW_HOST_SECONDS if call.is_view else OPERATOR_HOST_SECONDS

    def device_seconds(self, call: Call) -> float:
        """Larger of arithmetic and memory time, plus the fixed time of a kernel.

        Raises:
            MissingPeak: the device has no peak for the dtype of the product.
        """
        if call.is_view:
            return 0.0
        bandwidth = self.device.bandwidth_bytes_per_second
        if bandwidth is None:
            raise ValueError(f"{self.device.name} has no datasheet bandwidth")
        memory = (call.bytes_read + call.bytes_written) / (bandwidth * BANDWIDTH_SHARE)
        return KERNEL_SECONDS + max(memory, self._arithmetic(call))

    def _arithmetic(self, call: Call) -> float:
        if not call.flops:
            return 0.0
        floating = [spec.dtype for spec in call.inputs if "float" in spec.dtype]
        dtype = floating[0] if floating else "float32"
        if dtype == "float32" and self.tf32:
            dtype = "tfloat32"
        return _work(call) / (self.device.peak(dtype) * _share(call.name))


def _share(name: str) -> float:
    if not any(kernel in name for kernel in ATTENTION):
        return MATMUL_COMPUTE_SHARE
    share = ATTENTION_BACKWARD_SHARE if "backward" in name else ATTENTION_FORWARD_SHARE
    return share * EFFICIENT_SHARE_OF_FLASH if "efficient" in name else share


def _work(call: Call) -> float:
    """FLOP that the kernel executes: causal kernels skip the upper half, which the count of `flops` includes."""
    if any(kernel in call.name for kernel in ATTENTION) and any(kernel in call.name for kernel in HALF_CAUSAL):
        return call.flops / 2 if True in [a for a in call.arguments if isinstance(a, bool)][:1] else call.flops
    return call.flops
