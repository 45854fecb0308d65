"""Stand-ins for `xformers`: `memory_efficient_attention`, its masks, and `SwiGLU`.

Tensors are (batch, tokens, heads, size). The dispatcher takes FlashAttention-2 where the card, the dtype and the mask
allow it, else the CUTLASS kernel, which is PyTorch's memory-efficient one (`xformers/ops/fmha/dispatch.py`, 0.0.32).
`SwiGLU` keeps its input and both projections (`xformers/ops/swiglu_op.py`).

Not covered: block-diagonal masks, sparse attention, decoding kernels.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerun.virtual.attention import current_target
from forerun.virtual.cuda.stand_ins.packages import StandInPackage
from forerun.virtual.cuda.stand_ins.registry import explain_missing, launch
from forerun.virtual.flash_attention import HALF, LARGEST_HEAD, VERSIONS, FlashOptions, attend


class LowerTriangularMask:
    """Each token sees itself and those before it."""


def memory_efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Any = None, p: float = 0.0, scale: float | None = None, *,
    op: Any = None, output_dtype: Any = None,
) -> Tensor:  # fmt: skip
    """Attention of (B, T, H, D), or of (B, T, D) with one head."""
    if query.dim() == 3:
        one_head = (each.unsqueeze(2) for each in (query, key, value))
        return memory_efficient_attention(*one_head, attn_bias=attn_bias, p=p, scale=scale)[:, :, 0]
    is_causal = isinstance(attn_bias, LowerTriangularMask) or attn_bias is LowerTriangularMask
    if not is_causal and attn_bias is not None and not isinstance(attn_bias, Tensor):
        raise NotImplementedError(explain_missing(f"xformers.ops.memory_efficient_attention with {attn_bias!r}"))
    is_flash = current_target().capability >= VERSIONS[2] and query.dtype in HALF and query.shape[-1] <= LARGEST_HEAD
    if is_flash and not isinstance(attn_bias, Tensor):
        return attend(query, key, value, (None, None), FlashOptions(2, p, scale, is_causal))[0]
    inputs = [each.transpose(1, 2) for each in (query, key, value)]
    bias = attn_bias if isinstance(attn_bias, Tensor) else None
    needs = torch.is_grad_enabled() and any(each.requires_grad for each in inputs)
    out = torch.ops.aten._scaled_dot_product_efficient_attention(*inputs, bias, needs, p, is_causal, scale=scale)[0]
    return out.transpose(1, 2)


class _Gate(torch.autograd.Function):
    """SiLU of one projection times the other, one launch each way."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        out = torch.empty_like(gate)
        launch("xformers_silu_mul", [out], [gate, up])
        ctx.save_for_backward(gate, up)
        return out

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        gate, up = ctx.saved_tensors
        gradients = torch.empty_like(gate), torch.empty_like(up)
        launch("xformers_silu_mul_backward", gradients, [gate, up, *upstream])
        return gradients


class SwiGLU(nn.Module):
    """Gated feed-forward layer."""

    def __init__(
        self, in_features: int, hidden_features: int, out_features: int | None = None, bias: bool = True, *,
        _pack_weights: bool = True,
    ):  # fmt: skip
        super().__init__()
        self.packs = _pack_weights
        if _pack_weights:
            self.w12 = nn.Linear(in_features, 2 * hidden_features, bias=bias)
        else:
            self.w1, self.w2 = (nn.Linear(in_features, hidden_features, bias=bias) for _ in range(2))
        self.w3 = nn.Linear(hidden_features, out_features or in_features, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""
        gate, up = self.w12(x).chunk(2, dim=-1) if self.packs else (self.w1(x), self.w2(x))
        return F.linear(_Gate.apply(gate, up), self.w3.weight, self.w3.bias)  # type: ignore[arg-type]


def _modules() -> Mapping[str, Mapping[str, Any]]:
    operators = {
        "memory_efficient_attention": memory_efficient_attention,
        "LowerTriangularMask": LowerTriangularMask,
        "SwiGLU": SwiGLU,
    }
    biases = {"LowerTriangularMask": LowerTriangularMask}
    return {
        "xformers": {},
        "xformers.ops": operators,
        "xformers.ops.fmha": operators,
        "xformers.ops.fmha.attn_bias": biases,
    }


PACKAGES = (StandInPackage("xformers", "xformers", "0.0.32", _modules, (7, 0)),)
"""Meta's xformers."""
