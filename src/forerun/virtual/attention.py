"""Attention as the target would run it: one aten kernel chosen by the rules of PyTorch's dispatcher.

CUDA (`aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`, PyTorch 2.13): cuDNN first on compute capability 9.0 and
10.0, then flash (capability 8.0 or more, 16-bit, no mask), memory-efficient, and math when nothing else takes the
inputs. CPU (`sdp_utils_cpp.cpp`): flash without dropout, else math. The kernels themselves are never run, only their
shapes: what counts is which tensors they keep for the backward pass.

Not covered: head sizes that the kernels pad, nested tensors.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.virtual.backend import DEVICE

HALF = (torch.float16, torch.bfloat16)
_LIBRARIES: list[torch.library.Library] = []  # a collected `Library` withdraws its kernels (torch/library.py:257, 2.13)


@dataclass(frozen=True)
class AttentionTarget:
    """What decides the kernel: the device kind, its compute capability, and a kernel forced by the user."""

    kind: str = "cuda"
    capability: tuple[int, int] = (8, 0)
    forced: str = "auto"


@dataclass
class _Current:
    target: AttentionTarget


_current = _Current(AttentionTarget())


def set_target(target: AttentionTarget) -> AttentionTarget:
    """Make `target` decide from now on; returns the one before."""
    before, _current.target = _current.target, target
    return before


def register() -> None:
    """Route attention on the virtual device through `attend`."""
    library = torch.library.Library("aten", "IMPL")
    _LIBRARIES.append(library)
    library.impl("scaled_dot_product_attention", attend, "AutogradPrivateUse1")


@dataclass(frozen=True)
class AttentionCall:
    """What the choice of a kernel looks at. Head counts and sizes are of query and key-value."""

    dtype: torch.dtype
    has_mask: bool
    dropout: float
    is_causal: bool
    query_length: int
    key_length: int
    query_heads: int
    key_heads: int
    head_size: int
    value_size: int
    needs_gradient: bool = True
    groups_heads: bool = False
    """Several query heads share a key head by request (`enable_gqa`); else head counts that differ are broadcast."""


def choose(call: AttentionCall, target: AttentionTarget) -> str:
    """`cudnn`, `flash`, `efficient` or `math`."""
    # sdp_utils.cpp (2.13), priority_order: cuDNN comes first only on the capabilities that `_takes` checks
    order = ["cudnn", "flash", "efficient"] if target.kind == "cuda" else ["flash"]
    if target.forced in ("flash", "efficient", "math"):
        order = [target.forced]
    return next((kernel for kernel in order if _takes(kernel, call, target)), "math")


def _takes(kernel: str, call: AttentionCall, target: AttentionTarget) -> bool:
    same_size = call.head_size == call.value_size
    # sdp_utils_cpp.h:419 (2.13), check_batch_size_and_num_heads_dense
    if call.query_heads != call.key_heads and not call.groups_heads:
        return False
    # sdp_utils_cpp.h:261 (2.13), check_for_dropout: the CPU's kernel has none
    if target.kind != "cuda":
        return kernel == "flash" and call.dropout == 0 and same_size
    # sdp_utils.cpp, check_head_dim_size_mem_efficient: 16 bytes of fp16 and bf16, or of fp32
    alignment = 8 if call.dtype in HALF else 4
    match kernel:
        case "cudnn":
            fits = same_size and call.head_size <= 128 and call.head_size % 8 == 0  # larger heads: flash
            return target.capability in ((9, 0), (10, 0)) and call.dtype in HALF and fits
        case "flash":
            # sdp_utils.cpp, check_flash_causal_non_square_seqlens; a mask: sdp_utils_cpp.h:282, check_for_attn_mask
            square = not call.is_causal or call.query_length == call.key_length
            return (
                target.capability >= (8, 0)
                and call.dtype in HALF
                and not call.has_mask
                and square
                and same_size
                and call.head_size <= 256  # sdp_utils.cpp, check_head_dim_size_flash
                and call.head_size % 8 == 0
            )
        case "efficient":
            dtype = call.dtype != torch.bfloat16 or target.capability >= (8, 0)
            aligned = call.head_size % alignment == 0 and call.value_size % alignment == 0
            return dtype and aligned and call.query_heads == call.key_heads
        case _:
            return False


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`scaled_dot_product_attention` by the kernel of the current target; shapes as there, (B, H, T, D)."""
    call = AttentionCall(
        dtype=query.dtype,
        has_mask=attn_mask is not None,
        dropout=dropout_p,
        is_causal=is_causal,
        query_length=query.shape[-2],
        key_length=key.shape[-2],
        query_heads=query.shape[-3],
        key_heads=key.shape[-3],
        head_size=query.shape[-1],
        value_size=value.shape[-1],
        needs_gradient=torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad),
        groups_heads=enable_gqa,
    )
    attn_mask = _as_bias(attn_mask, query)
    kernel = choose(call, _current.target)
    if kernel == "math":
        return torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
    return _fused(kernel, query, key, value, attn_mask, dropout_p, is_causal, scale, call)


def _as_bias(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """Boolean masks become an additive mask in the dtype of the query (`convert_boolean_attn_mask`)."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    zero = torch.scalar_tensor(0.0, dtype=query.dtype, device=mask.device)
    return torch.where(mask, zero, torch.scalar_tensor(float("-inf"), dtype=query.dtype, device=mask.device))


def _fused(
    kernel: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
    call: AttentionCall,
) -> Tensor:
    aten = torch.ops.aten
    if query.device.type != DEVICE:
        return aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, dropout, is_causal, attn_mask=bias, scale=scale
        )[0]
    if bias is not None:
        bias = bias.expand(query.shape[0], query.shape[1], call.query_length, call.key_length)
    if kernel == "flash":
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout, is_causal, False, scale=scale)[0]
    if kernel == "cudnn":
        return aten._scaled_dot_product_cudnn_attention(
            query, key, value, bias, call.needs_gradient, dropout, is_causal, False, scale=scale
        )[0]
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, call.needs_gradient, dropout, is_causal, scale=scale
    )[0]
