"""FlexAttention on the virtual GPU: one fused kernel where it is compiled, PyTorch's plain arithmetic where it is not.

`torch.nn.attention.flex_attention` is an operator on functions, so PyTorch asks each dispatch mode for a rule of its
own; those of `CudaDispatch` are here (`torch/_higher_order_ops/flex_attention.py`, 2.13). Compiled, it is a template of
Inductor's that works block by block and skips blocks that the mask rules out (Dong et al., arXiv:2412.05496): its FLOP
are those of the blocks that the mask keeps. How many these are is known where the mask's numbers are (`shadow.py`);
else all blocks are taken, and the forecast says so.

Not covered: the arithmetic of `score_mod`, gradients of what it captures in compiled code, `return_aux` with maxima.
"""

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from forerun.virtual.cuda.dispatch import CudaDispatch
from forerun.virtual.cuda.names import CudaNames
from forerun.virtual.cuda.shadow import shadow_of

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
COMPILED = ("compiled", "graph")
"""Who issues kernels of compiled code."""


def kept_pairs(mode: CudaDispatch, query: Tensor, key: Tensor, mask: Sequence[Any]) -> float:
    """Pairs of a query and a key, over batch and heads, in the blocks that a mask keeps."""
    batch, heads, queries, keys = query.shape[0], query.shape[1], query.shape[2], key.shape[2]
    every = batch * heads * queries * keys
    counts = [mask[place] for place in (PARTIAL_BLOCKS, FULL_BLOCKS) if isinstance(mask[place], Tensor)]
    shadows = [shadow_of(count) for count in counts]
    numbers = [shadow.value for shadow in shadows if shadow is not None and not shadow.is_assumed]
    if not counts or len(numbers) < len(counts):
        mode.assumptions.note("blocks that FlexAttention's mask keeps", "all of them")
        return every
    block = math.prod(min(size, length) for size, length in zip(mask[BLOCK_SIZES], (queries, keys), strict=True))
    repeats = batch * heads / math.prod(counts[0].shape[:-1])  # a mask may be one for all of them
    return min(every, repeats * block * sum(float(each.sum()) for each in numbers))


def _forward(
    mode: CudaDispatch, query: Tensor, key: Tensor, value: Tensor, score_mod: Callable[..., Any], block_mask: Any,
    *rest: Any, **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Output, the logarithms of sums, and the largest scores."""
    with mode, CudaNames():  # which is off within an operator on functions
        if mode.recorder.issuer not in COMPILED:
            return flex.math_attention(query, key, value, score_mod, block_mask, *rest, **options)
        size = query.shape[-1] + value.shape[-1]
        flops = PRODUCTS_FORWARD * size * kept_pairs(mode, query, key, block_mask)
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
        flops = PRODUCTS_BACKWARD * size * kept_pairs(mode, query, key, block_mask)
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
