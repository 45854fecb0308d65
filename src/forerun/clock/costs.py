"""How long one operator call takes: the interface of all cost models, and figures that several share."""

from typing import Protocol

from forerun.trace import Call
from forerun.units import MICRO

KERNEL_SECONDS = 4 * MICRO
"""Fixed time of a kernel on the device: of BF16 products on nine GPUs (NVIDIA AIConfigurator data)."""
EFFICIENT_SHARE_OF_FLASH = 0.5
"""Memory-efficient against flash attention; FlashAttention-2 (Dao 2023, arXiv:2307.08691, abstract) is about twice as
fast as its peers."""
OPERATOR_HOST_SECONDS = 20 * MICRO
"""Host time to issue one operator from eager Python, modules and autograd included. From launch-bound steps of
transformers' attention benchmarks (OPT-350M beside an L40S, BERT-base beside an A100, 2024): they took 2.4 to 2.6
times what 8 and 2 microseconds would have made of them."""
VIEW_HOST_SECONDS = 5 * MICRO
"""Host time of an operator that launches no kernel; same steps."""
COMPILED_HOST_SECONDS = 8 * MICRO
"""Host time to issue one kernel from compiled code; stated, not fitted."""

ATTENTION = (
    "scaled_dot_product_flash", "scaled_dot_product_efficient", "scaled_dot_product_cudnn", "._flash_attention_",
)  # fmt: skip
"""Parts of the names of fused attention kernels."""
HALF_CAUSAL = ("flash", "cudnn")
"""Those that skip the masked half of causal attention."""


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
