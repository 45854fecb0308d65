"""Functions of the extensions that DeepSpeed compiles at its first use (0.19.8, `deepspeed/ops/csrc`): optimizers.

`FusedAdam` and `FusedLion` are what its engine makes of "AdamW" and "Lion" in a configuration, `FusedLamb` of "Lamb";
with `offload_optimizer` they are C++ on the host, whose time is told with that of any update there.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from forerun.virtual.cuda.stand_ins.registry import launch


def _update_many(name: str) -> Callable[..., None]:
    """An update of lists of tensors in one launch: gradients, then what is written."""

    def update(chunk_size: int, noop_flag: Tensor, tensors: Sequence[Sequence[Tensor]], *numbers: Any) -> None:
        gradients, *others = tensors
        writes = [each for some in others for each in some]
        launch(name, writes, [*gradients, *writes])

    return update


def _lamb(weight: Tensor, copy: Tensor, first: Tensor, second: Tensor, gradient: Tensor, *numbers: Any) -> Tensor:
    """Two passes: norms of the weight and of its update, then the update (`fused_lamb_cuda_kernel.cu`)."""
    coefficient = torch.empty(1, dtype=torch.float32, device=weight.device)
    launch("deepspeed_lamb_norms", [first, second, coefficient], [gradient, weight, first, second])
    copies = [copy] if copy.numel() else []
    launch("deepspeed_lamb", [weight, *copies], [weight, first, second, coefficient])
    return coefficient


def _on_host(*args: Any) -> int:
    """An update in the host's memory, or what is around it; 0 is DeepSpeed's word for success."""
    return 0


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "fused_adam.multi_tensor_adam": _update_many("deepspeed_multi_tensor_adam"),
    "fused_lion.multi_tensor_lion": _update_many("deepspeed_multi_tensor_lion"),
    "fused_lamb.lamb": _lamb,
    **{
        f"cpu_{name}.{function}": _on_host
        for name in ("adam", "lion", "adagrad")
        for function in (f"create_{name}", f"{name}_update", f"{name}_rollback", f"destroy_{name}")
    },
}
"""Extension and function, as programs call them."""
EXTENSIONS = {name.partition(".")[0] for name in FUNCTIONS}
