"""Stand-ins for `apex`: fused optimizers and normalisations.

`FusedAdam` and `FusedLAMB` keep two fp32 moments for each parameter and update all of them in a few launches
(`apex/optimizers/fused_adam.py`, `fused_lamb.py`, NVIDIA/apex 24.04). `FusedLayerNorm` keeps its input and two fp32
numbers for each row, `FusedRMSNorm` one (`apex/normalization/fused_layer_norm.py`).

Not covered: `apex.amp`, `apex.parallel`, `apex.contrib`, `master_weights`, the memory-efficient variants.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from forerun.virtual.cuda.stand_ins.packages import StandInPackage
from forerun.virtual.cuda.stand_ins.registry import launch

FLOAT = torch.float32


class FusedAdam(torch.optim.Optimizer):
    """Adam in one launch for all parameters of a dtype."""

    kernel = "apex_multi_tensor_adam"

    def __init__(
        self, params: Any, lr: float = 1e-3, bias_correction: bool = True, betas: Any = (0.9, 0.999), eps: float = 1e-8,
        adam_w_mode: bool = True, weight_decay: float = 0.0, amsgrad: bool = False, set_grad_none: bool = True,
        **options: Any,
    ):  # fmt: skip
        if amsgrad:
            raise RuntimeError(f"{type(self).__name__} does not support the AMSGrad variant.")
        self.set_grad_none = set_grad_none
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"bias_correction": bias_correction})

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        """One update."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            by_dtype: dict[torch.dtype, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_dtype.setdefault(parameter.dtype, []).append(parameter)
            for parameters in by_dtype.values():
                self._update(parameters)
        return loss

    @torch.no_grad()
    def _update(self, parameters: list[Tensor]) -> None:
        moments = []
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["exp_avg"] = torch.zeros_like(parameter, dtype=FLOAT)
                state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=FLOAT)
            moments += [state["exp_avg"], state["exp_avg_sq"]]
        gradients = [each.grad for each in parameters if each.grad is not None]
        launch(self.kernel, [*parameters, *moments], [*parameters, *moments, *gradients])


class FusedLAMB(FusedAdam):
    """LAMB; the norms of all gradients come first."""

    kernel = "apex_multi_tensor_lamb"

    def _update(self, parameters: list[Tensor]) -> None:
        gradients = [each.grad for each in parameters if each.grad is not None]
        norm = torch.zeros(1, dtype=FLOAT, device=parameters[0].device)
        launch("apex_multi_tensor_l2norm", [norm], gradients)
        super()._update(parameters)


class _Normalisation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Any, bias: Any, rows: int, statistics: int) -> Tensor:
        kernel = "apex_layer_norm" if statistics == 2 else "apex_rms_norm"
        statistics_of_rows = [torch.empty(rows, dtype=FLOAT, device=x.device) for _ in range(statistics)]
        out = torch.empty_like(x)
        launch(kernel, [out, *statistics_of_rows], [x, weight, bias])
        ctx.save_for_backward(x, weight, bias, *statistics_of_rows)
        ctx.kernel = kernel
        return out

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        x, weight, bias, *statistics_of_rows = ctx.saved_tensors
        gradients = [None if each is None else torch.empty_like(each) for each in (x, weight, bias)]
        writes = [each for each in gradients if each is not None]
        launch(f"{ctx.kernel}_backward", writes, [x, weight, *statistics_of_rows, *upstream])
        return *gradients, None, None


class FusedLayerNormAffineFunction(torch.autograd.Function):
    """The function behind `FusedLayerNorm`, which Megatron-Core applies itself."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor, normalized_shape: Any, eps: float,
        memory_efficient: bool = False,
    ) -> Tensor:  # fmt: skip
        """Normalised input."""
        if memory_efficient:
            raise NotImplementedError("apex: memory_efficient layer normalisation keeps its output; it is not modelled")
        width = normalized_shape if isinstance(normalized_shape, int) else math.prod(normalized_shape)
        return _Normalisation.forward(ctx, input, weight, bias, input.numel() // width, 2)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        """Gradients of input, weight and bias."""
        return *_Normalisation.backward(ctx, *upstream)[:3], None, None, None


class FusedLayerNorm(nn.LayerNorm):
    """Layer normalisation in one launch."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalised input."""
        rows = input.numel() // math.prod(self.normalized_shape)
        return _Normalisation.apply(input, self.weight, self.bias, rows, 2)  # type: ignore[return-value]


class FusedRMSNorm(nn.RMSNorm):
    """Root-mean-square normalisation in one launch."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalised input."""
        rows = x.numel() // math.prod(self.normalized_shape)
        return _Normalisation.apply(x, self.weight, None, rows, 1)  # type: ignore[return-value]


def _modules() -> Mapping[str, Mapping[str, Any]]:
    optimizers = {"FusedAdam": FusedAdam, "FusedLAMB": FusedLAMB}
    norms = {"FusedLayerNorm": FusedLayerNorm, "FusedRMSNorm": FusedRMSNorm}
    return {
        "apex": {},
        "apex.optimizers": optimizers,
        "apex.normalization": norms,
        "apex.normalization.fused_layer_norm": norms | {"FusedLayerNormAffineFunction": FusedLayerNormAffineFunction},
    }


PACKAGES = (StandInPackage("apex", "apex", "0.1", _modules),)
"""NVIDIA's apex."""
