"""Stand-ins for the packages `flash_attn` (FlashAttention-2) and `flash_attn_interface` (FlashAttention-3).

Signatures of `flash_attn/flash_attn_interface.py` and `flash_attn/bert_padding.py`, 2.8.3, and of
`hopper/flash_attn_interface.py`. The kernels are in `virtual/flash_attention.py`.

Not covered: attention with a key-value cache, ALiBi slopes' gradient, the package's own layers and losses, its kernels
below autograd.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from forerun.virtual.cuda.stand_ins.packages import StandInPackage
from forerun.virtual.flash_attention import VERSIONS, FlashOptions, attend

NO_OFFSETS = (None, None)
BELOW = (
    "_flash_attn_forward", "_flash_attn_backward", "_flash_attn_varlen_forward", "_flash_attn_varlen_backward",
    "_wrapped_flash_attn_forward", "_wrapped_flash_attn_backward", "_wrapped_flash_attn_varlen_forward",
    "_wrapped_flash_attn_varlen_backward",
)  # fmt: skip
"""Kernels without autograd, of which the package's functions are made (2.8.3)."""


def _result(out: tuple[Tensor, Tensor], wants_sums: bool) -> Any:
    """The output; with the logarithms of sums and no dropout mask where the caller asks for the probabilities."""
    return (*out, None) if wants_sums else out[0]


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention of (B, T, H, D)."""
    options = FlashOptions(2, dropout_p, softmax_scale, causal, *window_size)
    return _result(attend(q, k, v, NO_OFFSETS, options), return_attn_probs)


def flash_attn_qkvpacked_func(
    qkv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention of (B, T, 3, H, D)."""
    options = FlashOptions(2, dropout_p, softmax_scale, causal, *window_size, packed=3)
    return _result(_Packed.apply(qkv, None, NO_OFFSETS, options), return_attn_probs)


def flash_attn_kvpacked_func(
    q: Tensor, kv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention of (B, T, H, D) to (B, S, 2, H, D)."""
    options = FlashOptions(2, dropout_p, softmax_scale, causal, *window_size, packed=2)
    return _result(_Packed.apply(kv, q, NO_OFFSETS, options), return_attn_probs)


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False, block_table: Tensor | None = None,
) -> Any:  # fmt: skip
    """Attention of (tokens, H, D) within documents."""
    longest = int(max_seqlen_q), int(max_seqlen_k)
    options = FlashOptions(2, dropout_p, softmax_scale, causal, *window_size, longest)
    return _result(attend(q, k, v, (cu_seqlens_q, cu_seqlens_k), options), return_attn_probs)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
    alibi_slopes: Tensor | None = None, deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention of (tokens, 3, H, D) within documents."""
    longest = int(max_seqlen), int(max_seqlen)
    options = FlashOptions(2, dropout_p, softmax_scale, causal, *window_size, longest, packed=3)
    return _result(_Packed.apply(qkv, None, (cu_seqlens, cu_seqlens), options), return_attn_probs)


def flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention of (tokens, H, D) to (tokens, 2, H, D) within documents."""
    longest = int(max_seqlen_q), int(max_seqlen_k)
    options = FlashOptions(2, dropout_p, softmax_scale, causal, *window_size, longest, packed=2)
    return _result(_Packed.apply(kv, q, (cu_seqlens_q, cu_seqlens_k), options), return_attn_probs)


class _Packed(torch.autograd.Function):
    """Attention of tensors that came as one: they are views of it, and so are their gradients."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, alone: Tensor | None, offsets: Any, options: FlashOptions) -> Any:
        parts = [packed.select(-3, number).detach().requires_grad_() for number in range(options.packed)]
        query = [] if alone is None else [alone.detach().requires_grad_()]
        with torch.enable_grad():
            out, sums = attend(*(query + parts), offsets=offsets, options=options)
        ctx.inner, ctx.inputs, ctx.shape = out, [*query, *parts], packed.shape
        ctx.mark_non_differentiable(sums)
        return out.detach(), sums.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        results = torch.autograd.grad(ctx.inner, ctx.inputs, gradients[0])
        alone = results[0] if len(results) > ctx.shape[-3] else None
        part = results[-1]
        whole = part.as_strided(ctx.shape, torch.empty(ctx.shape, device="meta").stride(), 0)
        return whole, alone, None, None


def flash_attn_func_3(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False, qv: Tensor | None = None,
    q_descale: Any = None, k_descale: Any = None, v_descale: Any = None, window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1, pack_gqa: Any = None,
    deterministic: bool = False, sm_margin: int = 0, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention of (B, T, H, D) by FlashAttention-3."""
    options = FlashOptions(3, 0.0, softmax_scale, causal, *window_size)
    out = attend(q, k, v, NO_OFFSETS, options)
    return out if return_attn_probs else out[0]


def flash_attn_varlen_func_3(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    seqused_q: Any = None, seqused_k: Any = None, softmax_scale: float | None = None, causal: bool = False,
    qv: Any = None, q_descale: Any = None, k_descale: Any = None, v_descale: Any = None,
    window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1,
    pack_gqa: Any = None, deterministic: bool = False, sm_margin: int = 0, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention of (tokens, H, D) within documents by FlashAttention-3."""
    longest = int(max_seqlen_q), int(max_seqlen_k)
    options = FlashOptions(3, 0.0, softmax_scale, causal, *window_size, longest)
    out = attend(q, k, v, (cu_seqlens_q, cu_seqlens_k), options)
    return out if return_attn_probs else out[0]


def index_first_axis(tensor: Tensor, indices: Tensor) -> Tensor:
    """Rows of `tensor` by number."""
    return tensor[indices]


def unpad_input(hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None) -> tuple[Any, ...]:
    """Tokens that are no padding, their places, the offset of each row's, the longest row, and tokens of each row."""
    mask = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = mask.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(mask.flatten(), as_tuple=False).flatten()
    longest = int(lengths.max().item())
    offsets = F.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    return hidden_states.flatten(0, 1)[indices], indices, offsets, longest, used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Tokens put back to their places among zeros."""
    rest = hidden_states.shape[1:]
    out = torch.zeros((batch * seqlen, *rest), device=hidden_states.device, dtype=hidden_states.dtype)
    out[indices] = hidden_states
    return out.view(batch, seqlen, *rest)


def _modules() -> Mapping[str, Mapping[str, Any]]:
    functions = {
        each.__name__: each
        for each in (
            flash_attn_func, flash_attn_qkvpacked_func, flash_attn_kvpacked_func, flash_attn_varlen_func,
            flash_attn_varlen_qkvpacked_func, flash_attn_varlen_kvpacked_func, flash_attn_with_kvcache,
        )
    }  # fmt: skip
    padding = {each.__name__: each for each in (index_first_axis, unpad_input, pad_input)}
    interface = functions | {name: _without_gradient(name) for name in BELOW}
    return {"flash_attn": functions, "flash_attn.flash_attn_interface": interface, "flash_attn.bert_padding": padding}


def _without_gradient(name: str) -> Callable[..., Any]:
    """A kernel of the package below autograd: libraries import it for sequences over several ranks, few call it."""

    def refused(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(
            f"flash_attn.flash_attn_interface.{name}: kernels below autograd are not on the virtual GPU; found a call "
            f"of one. Use flash_attn_func, or PyTorch's scaled_dot_product_attention, for the forecast."
        )

    return refused


def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Any = None, v: Any = None, **_: Any) -> Any:
    """Attention of new tokens to a cache; only the tokens of the cache are counted."""
    with torch.no_grad():
        return attend(q, k_cache, v_cache, NO_OFFSETS, FlashOptions(2))[0]


def _modules_3() -> Mapping[str, Mapping[str, Any]]:
    functions = {"flash_attn_func": flash_attn_func_3, "flash_attn_varlen_func": flash_attn_varlen_func_3}
    return {"flash_attn_interface": functions | {"flash_attn_with_kvcache": flash_attn_with_kvcache}}


@contextlib.contextmanager
def flash_in_transformers(name: str) -> Iterator[None]:
    """Let models of transformers whose attention is `name` use these functions, whatever is installed."""
    utils: Any = importlib.import_module("transformers.modeling_flash_attention_utils")
    functions = (
        (flash_attn_func, flash_attn_varlen_func)
        if name == "flash_attention_2"
        else (flash_attn_func_3, flash_attn_varlen_func_3)
    )
    values = {
        "_loaded_implementation": name, "_flash_fn": functions[0], "_flash_varlen_fn": functions[1],
        "_flash_with_kvcache_fn": None, "_pad_fn": utils._pad_input, "_unpad_fn": utils._unpad_input,
        "_process_flash_kwargs_fn": utils._lazy_define_process_function(functions[1]),
        "_process_with_kvcache_kwargs_fn": dict,
    }  # fmt: skip
    values = {each: value for each, value in values.items() if hasattr(utils, each)}  # 5.17 has one less
    before = {each: getattr(utils, each) for each in values}
    utils.__dict__.update(values)
    try:
        yield
    finally:
        utils.__dict__.update(before)


PACKAGES = (
    StandInPackage("flash_attn", "flash-attn", "2.8.3", _modules, VERSIONS[2]),
    StandInPackage("flash_attn_interface", "flash-attn-3", "3.0.0", _modules_3, VERSIONS[3], (9, 99)),
)
"""Version 2 for Ampere and newer, version 3 for Hopper alone."""
