"""bitsandbytes' optimizers as the virtual GPU sees them: the state they keep and one kernel for each parameter.

Their kernels have no fake versions, so a step on values that do not exist runs these stand-ins; a real step runs the
library. State of at least 4,096 elements is 8-bit with an fp32 scale for each 256; paged state lives in managed memory,
outside PyTorch's allocator, from 100,000 elements on. Source: `bitsandbytes/optim/optimizer.py`, 0.43 to 0.50.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from forerun.step.quantization import library

# bitsandbytes/optim/optimizer.py:383, 414, 524 (0.50)
MIN_8BIT_ELEMENTS = 4096
SCALE_BLOCK = 256
MIN_PAGED_ELEMENTS = 100_000
CODE_LENGTH = 256

library.define(
    "update_8bit_(Tensor(a!) parameter, Tensor gradient, Tensor(b!)[] moments, Tensor(c!)[] scales, Tensor code) -> ()"
)
library.define("update_32bit_(Tensor(a!) parameter, Tensor gradient, Tensor(b!)[] moments) -> ()")


@torch.library.register_fake("forerun::update_8bit_", lib=library)
def _(parameter: Tensor, gradient: Tensor, moments: list[Tensor], scales: list[Tensor], code: Tensor) -> None:
    return None


@torch.library.register_fake("forerun::update_32bit_", lib=library)
def _(parameter: Tensor, gradient: Tensor, moments: list[Tensor]) -> None:
    return None


class TracedOptimizer(torch.optim.Optimizer):
    """State and kernels of a bitsandbytes optimizer with `moments` per parameter, without values."""

    def __init__(self, groups: Any, *, moments: int, bits: int, paged: bool = False):
        super().__init__(groups, {})
        self.moments, self.bits, self.paged = moments, bits, paged
        self._codes: list[Tensor] = []
        """Code books, one for each moment, shared by all parameters: signed for the first, unsigned for the second."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One kernel for each parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter)

    def _update(self, parameter: Tensor) -> None:
        state = self.state[parameter]
        if not state:
            state.update(self._new_state(parameter))
        moments = [state[f"state{n + 1}"] for n in range(self.moments)]
        moments = [m for m in moments if m.device == parameter.device]
        gradient = parameter.grad.contiguous()  # type: ignore[union-attr]
        if "absmax1" in state:
            scales = [state[f"absmax{n + 1}"] for n in range(self.moments)]
            torch.ops.forerun.update_8bit_(parameter, gradient, moments, scales, state["qmap1"])
        else:
            torch.ops.forerun.update_32bit_(parameter, gradient, moments)

    def _new_state(self, parameter: Tensor) -> dict[str, Tensor]:
        size, device = parameter.numel(), parameter.device
        narrow = self.bits == 8 and size >= MIN_8BIT_ELEMENTS
        dtype = torch.uint8 if narrow else torch.float32
        # managed memory (cudaMallocManaged) is outside PyTorch's allocator: on meta it takes nothing from it
        place = torch.device("meta") if self.paged and size >= MIN_PAGED_ELEMENTS else device
        state = {f"state{n + 1}": torch.zeros(parameter.shape, dtype=dtype, device=place) for n in range(self.moments)}
        if narrow:
            if not self._codes:
                self._codes = [torch.zeros(CODE_LENGTH, device=device) for _ in range(self.moments)]
            for n in range(self.moments):
                state[f"qmap{n + 1}"] = self._codes[n]
                state[f"absmax{n + 1}"] = torch.zeros(-(-size // SCALE_BLOCK), device=device)
        return state


def paged_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of state in managed memory, of an optimizer that is only traced."""
    values = (v for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor))
    return sum(v.numel() * v.element_size() for v in values if v.device.type == "meta")
