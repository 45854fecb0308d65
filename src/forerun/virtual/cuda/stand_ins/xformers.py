"""Stand-ins for `xformers`: `memory_efficient_attention`, its masks, and `SwiGLU`.

Tensors are (batch, tokens, heads, size). The dispatcher takes FlashAttention-2 where the card, the dtype and the mask
allow it, else the CUTLASS kernel, which is PyTorch's memory-efficient one (`xformers/ops/fmha/dispatch.py`, 0.0.35).
Of five dimensions, (batch, tokens, groups, heads of a group, size), FlashAttention takes keys that are expanded as
grouped heads; the CUTLASS kernel gets them written out here, where the package runs one group after the other.
Documents behind one another (`BlockDiagonalMask`) have their offsets on the device and their longest on the host.
`SwiGLU` keeps its input and both projections (`xformers/ops/swiglu_op.py`).

Not covered: block-diagonal masks with padded keys or from the bottom right, sparse attention, decoding kernels.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
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


@dataclass
class SequenceInfo:
    """Where documents that lie behind one another begin."""

    seqstart: Tensor
    """(documents + 1,) int32, on the device."""
    seqstart_py: list[int]
    max_seqlen: int
    min_seqlen: int

    @classmethod
    def of(cls, lengths: Sequence[int], device: Any) -> "SequenceInfo":
        """Of documents of those lengths."""
        starts = [0, *itertools.accumulate(lengths)]
        where = torch.device("cuda") if device is None and torch.cuda.is_available() else device
        return cls(torch.tensor(starts, dtype=torch.int32, device=where), starts, max(lengths), min(lengths))

    def to(self, device: Any) -> "SequenceInfo":
        """With its offsets on a device."""
        return replace(self, seqstart=self.seqstart.to(device))


@dataclass
class BlockDiagonalMask:
    """Tokens see those of their own document."""

    q_seqinfo: SequenceInfo
    k_seqinfo: SequenceInfo
    window: int = -1

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Sequence[int], kv_seqlen: Sequence[int] | None = None, *, device: Any = None
    ) -> "BlockDiagonalMask":
        """Of documents of those lengths."""
        queries = SequenceInfo.of(q_seqlen, device)
        return cls(queries, queries if kv_seqlen is None else SequenceInfo.of(kv_seqlen, device))

    def make_causal(self) -> "BlockDiagonalCausalMask":
        """And only those before them."""
        return BlockDiagonalCausalMask(self.q_seqinfo, self.k_seqinfo, self.window)

    def make_local_attention(self, window_size: int) -> "BlockDiagonalMask":
        """And only the `window_size` last ones."""
        return replace(self, window=window_size - 1)

    def to(self, device: Any) -> "BlockDiagonalMask":
        """With its offsets on a device."""
        return replace(self, q_seqinfo=self.q_seqinfo.to(device), k_seqinfo=self.k_seqinfo.to(device))


class BlockDiagonalCausalMask(BlockDiagonalMask):
    """Tokens see those of their own document before them."""


def memory_efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Any = None, p: float = 0.0, scale: float | None = None, *,
    op: Any = None, output_dtype: Any = None,
) -> Tensor:  # fmt: skip
    """Attention of (B, T, H, D), of (B, T, D) with one head, or of (B, T, G, H, D) with G groups of heads."""
    if query.dim() == 3:
        one_head = (each.unsqueeze(2) for each in (query, key, value))
        return memory_efficient_attention(*one_head, attn_bias=attn_bias, p=p, scale=scale)[:, :, 0]
    is_documents = isinstance(attn_bias, BlockDiagonalMask)
    is_causal = isinstance(attn_bias, LowerTriangularMask | BlockDiagonalCausalMask) or attn_bias is LowerTriangularMask
    if not is_causal and not is_documents and attn_bias is not None and not isinstance(attn_bias, Tensor):
        raise NotImplementedError(explain_missing(f"xformers.ops.memory_efficient_attention with {attn_bias!r}"))
    is_flash = current_target().capability >= VERSIONS[2] and query.dtype in HALF and query.shape[-1] <= LARGEST_HEAD
    is_flash = is_flash and not isinstance(attn_bias, Tensor)
    shape = query.shape
    if query.dim() == 5:
        query = query.flatten(2, 3)
        key, value = (
            each[:, :, :, 0] if is_flash and each.stride(3) == 0 else each.flatten(2, 3) for each in (key, value)
        )
    inputs = (query, key, value)
    if is_documents:
        return _within_documents(inputs, attn_bias, p, scale, is_flash=is_flash, is_causal=is_causal).view(shape)
    if is_flash:
        return attend(*inputs, (None, None), FlashOptions(2, p, scale, is_causal))[0].view(shape)
    heads_first = [each.transpose(1, 2) for each in inputs]
    bias = attn_bias if isinstance(attn_bias, Tensor) else None
    needs = torch.is_grad_enabled() and any(each.requires_grad for each in inputs)
    out = torch.ops.aten._scaled_dot_product_efficient_attention(*heads_first, bias, needs, p, is_causal, scale=scale)[
        0
    ]
    return out.transpose(1, 2).reshape(shape)


def _within_documents(
    inputs: tuple[Tensor, Tensor, Tensor], mask: BlockDiagonalMask, dropout: float, scale: float | None, *,
    is_flash: bool, is_causal: bool,
) -> Tensor:  # fmt: skip
    """Attention of (1, tokens, heads, size), documents behind one another."""
    queries, keys = mask.q_seqinfo, mask.k_seqinfo
    offsets, longest = (queries.seqstart, keys.seqstart), (queries.max_seqlen, keys.max_seqlen)
    if is_flash:
        options = FlashOptions(2, dropout, scale, is_causal, mask.window, 0 if mask.window >= 0 else -1, longest)
        return attend(*(each[0] for each in inputs), offsets, options)[0][None]  # type: ignore[misc]
    needs = torch.is_grad_enabled() and any(each.requires_grad for each in inputs)
    window = None if mask.window < 0 else mask.window + 1
    return torch.ops.aten._efficient_attention_forward(
        *inputs, None, *offsets, *longest, dropout, int(is_causal), needs, scale=scale, window_size=window
    )[0]


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
    masks = (LowerTriangularMask, BlockDiagonalMask, BlockDiagonalCausalMask)
    biases = {each.__name__: each for each in masks}
    built = SimpleNamespace(build_env={})
    return {
        "xformers": {},
        "xformers._cpp_lib": {"_register_extensions": lambda: built},
        "xformers.ops": operators,
        "xformers.ops.fmha": operators | {"attn_bias": SimpleNamespace(**biases)},
        "xformers.ops.fmha.attn_bias": biases,
    }


FAULT = "xformers._cpp_lib", "_cpp_library_load_exception"
PACKAGES = (StandInPackage("xformers", "xformers", "0.0.35", _modules, (7, 0), fault=FAULT),)
"""Meta's xformers."""
