"""Attention as the target would run it: one aten kernel chosen by the rules of PyTorch's dispatcher.

CUDA (`aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`, PyTorch 2.13): cuDNN first on compute capability 9.0 and
10.0, then flash (capability 8.0 or more, 16-bit, no mask), memory-efficient, and math when nothing else takes the
inputs. CPU (`sdp_utils_cpp.cpp`): flash without dropout, else math. The kernels themselves are never run, only their
shapes: what counts is which tensors they keep for the backward pass.

Not covered: head sizes that the kernels pad, nested tensors.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from forerun.hardware.catalogue import Device

HALF = (torch.float16, torch.bfloat16)
_LIBRARIES: list[torch.library.Library] = []  # a collected `Library` withdraws its kernels (torch/library.py:257, 2.13)


@dataclass(frozen=True)
class AttentionTarget:
    """What decides the kernel: the device kind, its compute capability, and a kernel forced by the user.

    `forced` is `model.attention` of the settings; `sdpa:…` forces a kernel.
    """

    kind: str = "cuda"
    capability: tuple[int, int] = (8, 0)
    forced: str = "auto"
    reasons: list[str] = field(default_factory=list, compare=False)
    """Filled with why calls fell back to math."""
    device: Device | None = field(default=None, compare=False, repr=False)
    """Its row of the catalogue: traces are kept by what was asked of it, so no more is asked than must be."""

    @property
    def takes_cudnn_first(self) -> bool:
        """Whether PyTorch tries cuDNN's kernel before all others."""
        return self.capability in CUDNN_FIRST and (self.device is None or self.device.prefers_cudnn)

    @property
    def processors(self) -> int:
        """Multiprocessors of the device."""
        return (self.device.sm_count if self.device is not None else None) or 1


@dataclass
class _Current:
    target: AttentionTarget


_current = _Current(AttentionTarget())


def set_target(target: AttentionTarget) -> AttentionTarget:
    """Make `target` decide from now on; returns the one before."""
    before, _current.target = _current.target, target
    return before


def current_target() -> AttentionTarget:
    """What decides now."""
    return _current.target


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
    dimensions: int = 4
    """Of query, key and value where all have as many, else 0."""
    same_batch: bool = True
    """Query, key and value have as many rows; else the one that has fewer is broadcast."""
    mask_needs_gradient: bool = False
    """The mask is learned, as T5's bias of relative positions is."""
    has_gaps: bool = False
    """Neighbours in a row of an input or of the mask are not neighbours in memory; T5 permutes its bias so."""


FUSED = ("cudnn", "flash", "efficient")
"""Kernels in the order of PyTorch's preference (sdp_utils.cpp, 2.13, priority_order)."""


CUDNN_FIRST = ((9, 0), (10, 0), (10, 3))
"""Compute capabilities where cuDNN comes first (sdp_utils.cpp, check_prefer_cudnn_attention); 10.3 since
pytorch/pytorch#170800, which is in 2.11."""


def _enabled() -> tuple[str, ...]:
    """Kernels that the program has not ruled out (`torch.nn.attention.sdpa_kernel`, `torch.backends.cuda`)."""
    flags = torch.backends.cuda
    are_on = (flags.cudnn_sdp_enabled(), flags.flash_sdp_enabled(), flags.mem_efficient_sdp_enabled())
    return tuple(kernel for kernel, is_on in zip(FUSED, are_on, strict=True) if is_on)


def why_math(call: AttentionCall, target: AttentionTarget) -> str:
    """Why no fused kernel takes a call, in words."""
    kernel = target.forced.removeprefix("sdpa:")
    alignment = 8 if call.dtype in HALF else 4
    reasons = [
        (call.dimensions != 4, "query, key and value do not all have 4 dimensions"),
        (not call.same_batch, "query, key and value have different batches"),
        (kernel == "math", "model.attention asks for math"),
        (kernel == "flash" and call.has_mask, "PyTorch's flash kernel takes no attention mask"),
        (kernel == "flash" and call.dtype not in HALF, "the flash kernel computes in 16 bits only"),
        (
            call.dtype == torch.bfloat16 and target.kind == "cuda" and target.capability < (8, 0),
            "no fused kernel computes in bf16 before compute capability 8.0",
        ),
        (
            call.has_gaps,
            "numbers of one row are not neighbours in memory, of the mask (T5's positions, say) or an input",
        ),
        (call.head_size % alignment != 0, f"heads of {call.head_size} are no multiple of {alignment}"),
        (
            call.query_heads != call.key_heads and call.has_mask,
            f"{call.query_heads} query heads share {call.key_heads} key heads and there is a mask",
        ),
        (call.query_heads != call.key_heads, "query and key have different numbers of heads"),
    ]
    return next((text for applies, text in reasons if applies), "no fused kernel takes these inputs")


def choose(call: AttentionCall, target: AttentionTarget, enabled: tuple[str, ...] = FUSED) -> str:
    """`cudnn`, `flash`, `efficient` or `math`; only from kernels that are `enabled`."""
    # sdp_utils.cpp (2.13), priority_order: cuDNN comes first only on the capabilities that `_takes` checks
    order = ["cudnn", "flash", "efficient"] if target.kind == "cuda" else ["flash"]
    kernel = target.forced.removeprefix("sdpa:")
    if kernel in (*order, "efficient", "cudnn", "math"):
        order = [kernel]
    return next((kernel for kernel in order if kernel in enabled and _takes(kernel, call, target)), "math")


def _takes(kernel: str, call: AttentionCall, target: AttentionTarget) -> bool:
    same_size = call.head_size == call.value_size
    # sdp_utils_cpp.h (2.13), check_tensor_shapes
    if call.dimensions != 4:
        return False
    # sdp_utils_cpp.h:419 (2.13), check_batch_size_and_num_heads_dense
    if not call.same_batch:
        return False
    if call.query_heads != call.key_heads and not call.groups_heads:
        return False
    # sdp_utils_cpp.h:261 (2.13), check_for_dropout: the CPU's kernel has none; :275, check_attn_mask_shape
    if target.kind != "cuda":
        return kernel == "flash" and call.dropout == 0 and same_size and not call.mask_needs_gradient
    # sdp_utils_cpp.h (2.13), check_last_dim_stride_equals_1_dense
    if call.has_gaps:
        return False
    # sdp_utils.cpp, check_head_dim_size_mem_efficient: 16 bytes of fp16 and bf16, or of fp32
    alignment = 8 if call.dtype in HALF else 4
    match kernel:
        case "cudnn":
            # sdp_utils.cpp, check_cudnn_tensor_shapes: sizes may differ; 256 on Hopper (cuDNN 9.10), 192 beside 128 on
            # data-centre Blackwell (9.11), 128 elsewhere, else flash
            sizes = (call.head_size, call.value_size)
            largest = 256 if target.capability == (9, 0) else 128
            fits = max(sizes) <= largest and not any(size % 8 for size in sizes)
            fits = fits or (target.capability[0] == 10 and sizes == (192, 128))
            # by itself PyTorch takes it first on three architectures only; by request from Ampere on
            # (sdp_utils.cpp, check_prefer_cudnn_attention and check_cudnn_hardware_support)
            is_on = target.takes_cudnn_first or (target.forced == "sdpa:cudnn" and target.capability >= (8, 0))
            # sdp_utils.cpp, check_cudnn_deterministic
            is_on = is_on and (
                not torch.are_deterministic_algorithms_enabled()
                or torch.is_deterministic_algorithms_warn_only_enabled()
            )
            # sdp_utils_cpp.h:275 (2.13), check_attn_mask_shape
            return is_on and call.dtype in HALF and fits and not call.mask_needs_gradient
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
        query_heads=_heads(query),
        key_heads=_heads(key),
        head_size=query.shape[-1],
        value_size=value.shape[-1],
        needs_gradient=torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad),
        groups_heads=enable_gqa,
        dimensions=query.dim() if query.dim() == key.dim() == value.dim() else 0,
        same_batch=query.shape[0] == key.shape[0] == value.shape[0],
        mask_needs_gradient=torch.is_grad_enabled() and attn_mask is not None and attn_mask.requires_grad,
        has_gaps=any(
            each.stride()[-1:] not in ((1,), ()) for each in (query, key, value, attn_mask) if each is not None
        ),
    )
    attn_mask = _as_bias(attn_mask, query)
    target = _current.target
    # on the CPU, Dynamo traces what is here: it may ask for nothing
    kernel = choose(call, target, _enabled() if target.kind == "cuda" else FUSED)
    if kernel == "math":
        if target.kind == "cuda":
            _note_math(call, target)
        return torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
    return _fused(kernel, query, key, value, attn_mask, dropout_p, is_causal, scale, call)


def _heads(tensor: Tensor) -> int:
    return tensor.shape[-3] if tensor.dim() > 2 else 1


def _note_math(call: AttentionCall, target: AttentionTarget) -> None:
    """Say why a call takes plain arithmetic, or that the program has ruled that out too."""
    reason = why_math(call, target)
    if not torch.backends.cuda.math_sdp_enabled():
        raise RuntimeError(f"No available kernel. Aborting execution. ({reason})")
    if reason not in target.reasons:
        target.reasons.append(reason)


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
    if _current.target.kind != "cuda":  # a program's tensors say `cuda`, so their device cannot be asked
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
