"""FlashAttention-2 and -3 as their packages run them: one kernel forward, one backward, with what each keeps.

Tensors are (batch, tokens, heads, size), or (tokens, heads, size) with the offset of every document. Key and value
heads may be fewer than query heads; nothing is repeated. FlashAttention-2 keeps query, key, value, output, the fp32
logarithm of the softmax's sum and the generator's state (`flash_attn/flash_attn_interface.py`, 2.8.3, `FlashAttnFunc`);
heads whose size is no multiple of 8 are padded first, and the padded copies are kept. FlashAttention-3 keeps the same
without the generator, as it has no dropout (`hopper/flash_attn_interface.py`). Packed inputs get packed gradients.

Buffers of the backward pass are in `kernel_memory.py`. FLOP are those of all pairs of tokens, as PyTorch counts them
for its own kernel (causal ones skip half, which `clock` knows); a sliding window counts only the pairs inside it.

Not covered: FP8, paged key-value caches, splits for decoding.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from forerun.virtual.attention import current_target
from forerun.virtual.cuda.shadow import shadow_of

VERSIONS = {2: (8, 0), 3: (9, 0)}
"""Least compute capability of each: README of github.com/Dao-AILab/flash-attention (Ampere; Hopper for version 3)."""
HALF = (torch.float16, torch.bfloat16)
HEAD_MULTIPLE, LARGEST_HEAD = 8, 256
"""`mha_fwd` of flash_api.cpp: sizes are multiples of 8, at most 256."""
PRODUCTS_FORWARD, PRODUCTS_BACKWARD = 2, 5
_OPTIONS = "float dropout, float? scale, bool causal, int left, int right"
_DOCUMENTS = "Tensor? query_offsets, Tensor? key_offsets, int longest_query, int longest_key"
library = torch.library.Library("forerun", "FRAGMENT")
for _version in VERSIONS:
    library.define(
        f"_flash_attention_{_version}_forward(Tensor query, Tensor key, Tensor value, {_DOCUMENTS}, {_OPTIONS}) "
        "-> (Tensor, Tensor, Tensor)"
    )
    library.define(
        f"_flash_attention_{_version}_backward(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor out, "
        f"Tensor sums, Tensor state, {_DOCUMENTS}, {_OPTIONS}, int packed) -> (Tensor, Tensor, Tensor)"
    )


@dataclass(frozen=True)
class FlashOptions:
    """What a call of FlashAttention says beside its tensors; `left` and `right` bound a sliding window, -1 does not."""

    version: int = 2
    dropout: float = 0.0
    scale: float | None = None
    causal: bool = False
    left: int = -1
    right: int = -1
    longest: tuple[int, int] = (0, 0)
    """Of documents in query and key; zeros where there are no offsets."""
    packed: int = 0
    """Tensors that came as one: 3 are query, key and value, 2 are key and value."""

    @property
    def flags(self) -> tuple[Any, ...]:
        """In the order of the operators' schemas."""
        return self.dropout, self.scale, self.causal, self.left, self.right


def attend(query: Tensor, key: Tensor, value: Tensor, offsets: tuple[Any, Any], options: FlashOptions) -> Any:
    """Attention and the logarithm of its softmax's sum, by FlashAttention.

    Raises:
        RuntimeError: the card, the dtype or the head size is not one that it has a kernel for, as it does itself.
    """
    _check(query, options.version)
    return _FlashAttention.apply(query, key, value, *offsets, options)


def _check(query: Tensor, version: int) -> None:
    capability, least = current_target().capability, VERSIONS[version]
    if capability < least or (version == 3 and capability[0] > least[0]):
        raise RuntimeError(
            f"FlashAttention-{version} needs compute capability {least[0]}.{least[1]}"
            f"{' exactly' if version == 3 else ' or newer'}; this GPU has {capability[0]}.{capability[1]}. "
            f"Use PyTorch's own attention (sdpa) on it."
        )
    if query.dtype not in HALF:
        raise RuntimeError(
            f"FlashAttention-{version} only computes in fp16 and bf16; found {query.dtype}. Run the model in 16 bits "
            f"or under autocast."
        )
    if query.shape[-1] > LARGEST_HEAD:
        raise RuntimeError(
            f"FlashAttention-{version} has heads of at most {LARGEST_HEAD}; found {query.shape[-1]}. Use sdpa."
        )


class _FlashAttention(torch.autograd.Function):
    """What `FlashAttnFunc` and its like do."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, query_offsets: Any, key_offsets: Any, options: FlashOptions
    ) -> tuple[Tensor, Tensor]:
        size = query.shape[-1]
        if size % HEAD_MULTIPLE:
            query, key, value = (F.pad(each, (0, -size % HEAD_MULTIPLE)) for each in (query, key, value))
        operator = getattr(torch.ops.forerun, f"_flash_attention_{options.version}_forward")
        documents = (query_offsets, key_offsets, *options.longest)
        out, sums, state = operator(query, key, value, *documents, *options.flags)
        ctx.save_for_backward(query, key, value, out, sums, state, query_offsets, key_offsets)
        ctx.options, ctx.size = options, size
        ctx.mark_non_differentiable(sums)
        return out[..., :size], sums

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        query, key, value, out, sums, state, query_offsets, key_offsets = ctx.saved_tensors
        options, gradient = ctx.options, gradients[0]
        if ctx.size % HEAD_MULTIPLE:
            gradient = F.pad(gradient, (0, -ctx.size % HEAD_MULTIPLE))
        operator = getattr(torch.ops.forerun, f"_flash_attention_{options.version}_backward")
        results = operator(
            gradient, query, key, value, out, sums, state, query_offsets, key_offsets, *options.longest, *options.flags,
            options.packed,
        )  # fmt: skip
        return *(each[..., : ctx.size] for each in results), None, None, None


def _forward(query: Tensor, key: Tensor, value: Tensor, query_offsets: Any, *_: Any) -> tuple[Tensor, ...]:
    if query_offsets is None:
        sums = query.shape[0], query.shape[2], query.shape[1]
    else:
        sums = query.shape[1], query.shape[0]
    state = torch.empty(2, dtype=torch.int64, device=query.device)
    return torch.empty_like(query), query.new_empty(sums, dtype=torch.float32), state


def _backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor, state: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    packed = rest[-1]
    tensors = (query, key, value)
    if not packed:
        return tuple(each.new_empty(each.shape) for each in tensors)
    alone = tensors[: 3 - packed]
    shape = value.shape  # packed tensors are alike; the number of them comes before the heads
    buffer = value.new_empty((*shape[:-2], packed, *shape[-2:]))
    return *(each.new_empty(each.shape) for each in alone), *(buffer.select(-3, number) for number in range(packed))


def pairs_of_tokens(query: Tensor, key: Tensor, documents: tuple[Any, ...], options: tuple[Any, ...]) -> float:
    """Pairs of a query and a key token that one head looks at, all documents together; causal ones count in full."""
    query_offsets, key_offsets, longest_query, _ = documents
    causal, left, right = options[2:5]
    if query_offsets is None:
        return query.shape[0] * _pairs(query.shape[1], key.shape[1], left, 0 if causal and left >= 0 else right)
    shadows = [shadow_of(each) for each in (query_offsets, key_offsets)]
    if all(shadow is not None and not shadow.is_assumed for shadow in shadows):
        with torch._C._DisableTorchDispatch():
            ends = [shadow.value.diff().tolist() for shadow in shadows if shadow is not None]
        bounds = left, 0 if causal and left >= 0 else right
        return sum(_pairs(rows, columns, *bounds) for rows, columns in zip(*ends, strict=True))
    # only how many documents there are is known: lengths are taken as geometric, with a mean square of twice mean²
    mean = query.shape[0] / (query_offsets.numel() - 1)
    longest = longest_query or mean  # 0 where the host could not know it
    return query.shape[0] * min(2 * mean, longest, left + 1 if left >= 0 else longest)


def _pairs(rows: int, columns: int, left: int, right: int) -> float:
    """Of one document: keys from `left` before to `right` after each query; -1 is without bound."""
    if left < 0 and right < 0:
        return rows * columns
    shift = columns - rows  # the last query meets the last key
    reach_left, reach_right = (columns if side < 0 else side for side in (left, right))
    total = 0
    for row in range(rows):
        first, last = max(0, row + shift - reach_left), min(columns - 1, row + shift + reach_right)
        total += max(0, last - first + 1)
    return total


def _forward_flops(
    query: Tensor, key: Tensor, value: Tensor, a: Any, b: Any, c: int, d: int, *options: Any, **_: Any
) -> int:
    heads, size = query.shape[-2:]
    return round(PRODUCTS_FORWARD * 2 * heads * size * pairs_of_tokens(query, key, (a, b, c, d), options))


def _backward_flops(gradient: Tensor, query: Tensor, key: Tensor, *rest: Any, **_: Any) -> int:
    heads, size = query.shape[-2:]
    documents, options = rest[4:8], rest[8:13]
    return round(PRODUCTS_BACKWARD * 2 * heads * size * pairs_of_tokens(query, key, documents, options))


for _version in VERSIONS:
    torch.library.register_fake(f"forerun::_flash_attention_{_version}_forward", _forward, lib=library)
    torch.library.register_fake(f"forerun::_flash_attention_{_version}_backward", _backward, lib=library)
    register_flop_formula(getattr(torch.ops.forerun, f"_flash_attention_{_version}_forward"), True)(_forward_flops)
    register_flop_formula(getattr(torch.ops.forerun, f"_flash_attention_{_version}_backward"), True)(_backward_flops)
