"""FlexAttention on the virtual GPU: one fused kernel where it is compiled, PyTorch's plain arithmetic where it is not.

`torch.nn.attention.flex_attention` is an operator on functions, so PyTorch asks each dispatch mode for a rule of its
own; those of `CudaDispatch` are here (`torch/_higher_order_ops/flex_attention.py`, 2.13). Compiled, it is a template of
Inductor's that works block by block and skips blocks that the mask rules out (Dong et al., arXiv:2412.05496): its FLOP
are those of the blocks that the mask keeps. How many these are is known where the mask's numbers are (`shadow.py`),
or what its function compares; else all blocks are taken, and the forecast says so.

Not covered: the arithmetic of `score_mod`, gradients of what it captures in compiled code, `return_aux` with maxima.
"""

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, arange, full
from torch.nn.attention.flex_attention import _vmap_for_bhqkv  # type: ignore[attr-defined]
from torch.utils.flop_counter import register_flop_formula

from forerun.virtual.cuda.dispatch import CudaDispatch
from forerun.virtual.cuda.names import CudaNames
from forerun.virtual.cuda.shadow import Shadow, shadow_of

flex = importlib.import_module("torch._higher_order_ops.flex_attention")  # hidden by the operator of its name
PARTIAL_BLOCKS, FULL_BLOCKS = 2, 4
"""Places of the numbers of blocks in `BlockMask.as_tuple` (torch/nn/attention/flex_attention.py:1119, 2.13)."""
BLOCK_SIZES = slice(-3, -1)
PRODUCTS_FORWARD, PRODUCTS_BACKWARD = 2, 5
"""Matrix products of fused attention: scores and values; the scores again, and four gradients."""
library = torch.library.Library("forerun", "FRAGMENT")
library.define("flex_attention_forward(Tensor query, Tensor key, Tensor value, int flops) -> (Tensor, Tensor, Tensor)")
library.define("flex_attention_rows(Tensor out, Tensor gradient) -> Tensor")
library.define(
    "flex_attention_backward(Tensor query, Tensor key, Tensor value, Tensor gradient, Tensor sums, Tensor rows, "
    "int flops) -> (Tensor, Tensor, Tensor)"
)
_KEPT = "_forerun_kept_blocks"
KEPT_BLOCKS = "blocks that FlexAttention's mask keeps"
"""What is assumed where nobody can know the numbers that a mask compares."""
MOST_ROWS, FEWEST_ROWS, MOST_PAIRS, MOST_AT_ONCE = 128, 16, 2**26, 2**21
"""Rows of blocks that are asked of a mask at most, and of very long sequences at least; pairs in all of them, and in
one row: more is memory that the system gives and takes back for each operator, at a tenth of the speed."""
COMPILED = ("compiled", "graph")
"""Who issues kernels of compiled code."""


def kept_pairs(
    mode: CudaDispatch, query: Tensor, key: Tensor, mask: Sequence[Any], captured: Sequence[Any] = ()
) -> float:
    """Pairs of a query and a key, over batch and heads, in the blocks that a mask keeps; `captured` are its tensors."""
    batch, heads, queries, keys = query.shape[0], query.shape[1], query.shape[2], key.shape[2]
    every = batch * heads * queries * keys
    counts = [mask[place] for place in (PARTIAL_BLOCKS, FULL_BLOCKS) if isinstance(mask[place], Tensor)]
    shadows = [shadow_of(count) for count in counts]
    if counts and any(shadow is None for shadow in shadows):
        shadows = [_evaluated(mask, captured, (queries, keys))]
    numbers = [shadow.value for shadow in shadows if shadow is not None]
    if len(numbers) < max(1, len(shadows)):
        mode.assumptions.note(KEPT_BLOCKS, "all of them")
        return every
    if any(shadow is not None and shadow.is_assumed for shadow in shadows):
        mode.assumptions.note(KEPT_BLOCKS, "as many as the values assumed before give")
    block = math.prod(min(size, length) for size, length in zip(mask[BLOCK_SIZES], (queries, keys), strict=True))
    repeats = batch * heads / math.prod(counts[0].shape[:-1])  # a mask may be one for all of them
    return min(every, repeats * block * sum(float(each.sum()) for each in numbers))


def _evaluated(mask: Sequence[Any], captured: Sequence[Any], lengths: tuple[int, int]) -> Shadow | None:
    """Blocks that a mask keeps, from its function: all pairs at once would be too many here.

    Rows of blocks are asked one by one; of very long sequences some of them, evenly, stand for all, and some queries of
    each, with its last. None where the function compares what nobody knows.
    """
    if (blocks := getattr(mask[PARTIAL_BLOCKS], _KEPT, None)) is not None:  # of the layer before
        return blocks
    values, is_assumed = [], False
    for each in captured:
        shadow = shadow_of(each) if isinstance(each, Tensor) else None
        if shadow is None and isinstance(each, Tensor):
            return None
        values.append(each if shadow is None else shadow.value)
        is_assumed |= shadow is not None and shadow.is_assumed
    high, wide = (min(size, length) for size, length in zip(mask[BLOCK_SIZES], lengths, strict=True))
    parts = tuple(mask[PARTIAL_BLOCKS].shape[:-1])
    rows = math.prod(parts) * -(-lengths[0] // high)
    sample = min(rows, MOST_ROWS, max(FEWEST_ROWS, MOST_PAIRS // (high * lengths[1])))
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        function = _vmap_for_bhqkv(mask[-1], prefix=(), suffix=(None,) * len(values))
        try:
            numbers = [int((number + 0.5) * rows / sample) for number in range(sample)]
            count = sum(_kept_in_row(function, values, row, parts, lengths, (high, wide)) for row in numbers)
        except (RuntimeError, TypeError, IndexError, NotImplementedError):
            return None
        blocks = Shadow(full((), count * rows / sample, device="cpu"), is_assumed)
    setattr(mask[PARTIAL_BLOCKS], _KEPT, blocks)
    return blocks


def _kept_in_row(
    function: Callable[..., Tensor], captured: Sequence[Any], row: int, parts: Sequence[int], lengths: tuple[int, int],
    block: tuple[int, int],
) -> int:  # fmt: skip
    """Blocks that are kept in one row of blocks, counted over the parts of the batch and the heads."""
    part, number = divmod(row, -(-lengths[0] // block[0]))
    place = divmod(part, parts[1])
    end, each = min(lengths[0], (number + 1) * block[0]), -(-block[0] * lengths[1] // MOST_AT_ONCE)
    queries = arange(end - 1, number * block[0] - 1, -each, device="cpu")
    of_batch, of_head = (arange(index, index + 1, device="cpu") for index in place)
    pairs = function(of_batch, of_head, queries, arange(lengths[1], device="cpu"), *captured)
    keys = pairs.expand(1, 1, len(queries), lengths[1])[0, 0].any(0)
    return sum(bool(each.any()) for each in keys.split(block[1]))


def _captured(rest: Sequence[Any], options: dict[str, Any]) -> Sequence[Any]:
    """Tensors that the mask's function reads: last of the operator's arguments."""
    return options.get("mask_mod_other_buffers", rest[3] if len(rest) > 3 else ())


def _forward(
    mode: CudaDispatch, query: Tensor, key: Tensor, value: Tensor, score_mod: Callable[..., Any], block_mask: Any,
    *rest: Any, **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Output, the logarithms of sums, and the largest scores."""
    with mode, CudaNames():  # which is off within an operator on functions
        if mode.recorder.issuer not in COMPILED:
            return flex.math_attention(query, key, value, score_mod, block_mask, *rest, **options)
        size = query.shape[-1] + value.shape[-1]
        flops = PRODUCTS_FORWARD * size * kept_pairs(mode, query, key, block_mask, _captured(rest, options))
        return torch.ops.forerun.flex_attention_forward(query, key, value, round(flops))


def _backward(
    mode: CudaDispatch, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor, gradient: Tensor | None,
    of_sums: Tensor | None, forward: Any, joint: Any, block_mask: Any, *rest: Any, **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Gradients of query, key and value, and none of what `score_mod` captures."""
    with mode, CudaNames():  # which is off within an operator on functions
        if mode.recorder.issuer not in COMPILED or gradient is None:
            return flex.sdpa_dense_backward(
                query, key, value, out, sums, gradient, of_sums, forward, joint, block_mask, *rest, **options
            )
        size = query.shape[-1] + value.shape[-1]
        flops = PRODUCTS_BACKWARD * size * kept_pairs(mode, query, key, block_mask, _captured(rest, options))
        rows = torch.ops.forerun.flex_attention_rows(out, gradient)
        gradients = torch.ops.forerun.flex_attention_backward(query, key, value, gradient, sums, rows, round(flops))
        captured = options.get("score_mod_other_buffers", rest[2] if len(rest) > 2 else ())
        return (*gradients, tuple(None for _ in captured))


def _results(query: Tensor, key: Tensor, value: Tensor, flops: int) -> tuple[Tensor, Tensor, Tensor]:
    """Output, the logarithms of sums, and room for the largest scores, which Inductor's template always has."""
    sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
    return query.new_empty((*query.shape[:-1], value.shape[-1])), sums, torch.empty_like(sums)


def _rows(out: Tensor, gradient: Tensor) -> Tensor:
    """Sums of output × gradient over each row, which a kernel of its own makes first."""
    return out.new_empty(out.shape[:-1], dtype=torch.float32)


def _gradients(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(each) for each in (query, key, value))


def _flops(*arguments: Any, **_: Any) -> int:
    return arguments[-1]


for _name, _shapes in (("forward", _results), ("rows", _rows), ("backward", _gradients)):
    torch.library.register_fake(f"forerun::flex_attention_{_name}", _shapes, lib=library)
for _name in ("forward", "backward"):
    register_flop_formula(getattr(torch.ops.forerun, f"flex_attention_{_name}"), get_raw=True)(_flops)


def register() -> None:
    """Give FlexAttention its rules; they concern our own mode only, so they stay."""
    for operator, rule in ((flex.flex_attention, _forward), (flex.flex_attention_backward, _backward)):
        if CudaDispatch not in operator.python_key_table:
            operator.py_impl(CudaDispatch)(rule)
