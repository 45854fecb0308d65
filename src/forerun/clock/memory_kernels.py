"""How long kernels take that only move memory and yet are not done in one pass over their bytes.

Each has two figures in `priors.json`: passes over its bytes, which count where it reads twice (the backward passes of
softmax and layer norm) or jumps (sums over rows by an index), and elements that a multiprocessor gets done in a clock,
which count in 16 bits: a kernel that works out where each element lies (broadcasts, permuted copies, `roll`) takes as
long for an element of two bytes as for one of four. The longer of both is taken. Everything that is not named reads and
writes once, in order; on an H100 that is right within 4 % for sums, GELU and its gradient, `cat`, casts to 16 bits and
fused AdamW.

Made by `benchmarks/truth/fit_operators.py` from `benchmarks/truth/operators-h100-80gb.csv` (PyTorch 2.11, 2026), from
the larger of two sizes; the smaller is the test. Other GPUs are taken to be like it, clock for clock.
"""

import math
from collections.abc import Mapping

from forerun.trace import Call, TensorSpec
from forerun.units import MICRO

STRIDED, INTO_ROWS, WIDENED = "strided", "into_rows", "widened"
"""Elementwise kernels whose operands lie or are repeated unlike their result; sums over all but the last dimension;
casts from 16 bits to more."""
COPIES, NARROW, WIDE = ("_to_copy", "copy_"), ("bfloat16", "float16"), ("float32", "float64")
ELEMENTWISE = (
    "add", "sub", "rsub", "mul", "div", "where", "maximum", "minimum", "addcmul", "masked_fill", "clone", "_to_copy",
    "copy_", "add_", "mul_", "div_", "contiguous", "pow", "fill_", "eq", "ne", "lt", "gt", "le", "ge",
)  # fmt: skip
SUMS = ("sum", "mean")
INTO_TABLE = ("embedding_dense_backward", "_embedding_bag_backward", "_embedding_bag_dense_backward")
"""Gradients of tables: indices are sorted, and the rows of each are added up, beside the table that is filled. Both
sizes of one table in two dtypes are `SORT_SECONDS` and `TABLE_ELEMENTS_PER_CLOCK` within 6 %."""
SORT_SECONDS, TABLE_ELEMENTS_PER_CLOCK = 28 * MICRO, 0.278
TARGETS = ("nll_loss_forward", "nll_loss2d_forward", "nll_loss_backward", "nll_loss2d_backward")
"""They read one value of each row, of the scores that they are given."""


def bytes_read(call: Call) -> int:
    """Bytes that a call reads: of some operands only what it picks."""
    name = _operator(call)
    if name in TARGETS:
        return sum(spec.bytes for spec in call.inputs if spec.dtype == "int64")
    return call.bytes_read


def memory_seconds(
    call: Call, one_pass: float, clocks_per_second: float, figures: Mapping[str, tuple[float, float]]
) -> float:
    """Seconds of a kernel for which a pass over its bytes takes `one_pass`, without what a launch costs.

    `clocks_per_second` are those of all multiprocessors together; `figures` are passes and elements per clock by kind.
    """
    if _operator(call) in INTO_TABLE:
        indices = next((spec for spec in call.inputs if "int" in spec.dtype), call.inputs[0])
        elements = math.prod(indices.shape) * call.inputs[0].shape[-1]
        return one_pass + SORT_SECONDS + elements / (TABLE_ELEMENTS_PER_CLOCK * clocks_per_second)
    kind = kind_of(call)
    if kind not in figures:
        return one_pass
    passes, elements_per_clock = figures[kind]
    elements = max((math.prod(spec.shape) for spec in (*call.inputs, *call.outputs)), default=0)
    return max(passes * one_pass, elements / (elements_per_clock * clocks_per_second) if elements_per_clock else 0.0)


def kind_of(call: Call) -> str:
    """The operator's name, or what several have in common."""
    name = _operator(call)
    if name in ELEMENTWISE and call.outputs and _is_strided(call):
        return STRIDED
    if name == "gather" and call.arguments[1] not in (-1, len(call.inputs[0].shape) - 1):
        return "gather_rows"  # neighbours are read with it: once, as all else
    if name in COPIES and _widens(call):
        return WIDENED
    if name in SUMS and call.inputs and call.outputs and _goes_into_rows(call.inputs[0], call.outputs[0]):
        return INTO_ROWS
    return name


def _operator(call: Call) -> str:
    return call.name.split(".")[1] if "." in call.name else call.name


def _widens(call: Call) -> bool:
    return bool(call.inputs and call.outputs) and call.inputs[-1].dtype in NARROW and call.outputs[0].dtype in WIDE


def _is_strided(call: Call) -> bool:
    """Whether an operand is laid out or repeated unlike the result; single numbers are not, nor where both are dense
    in the same order."""
    result = call.outputs[0]
    operands = [spec for spec in call.inputs if math.prod(spec.shape) > 1]
    return any(spec.shape != result.shape or not _alike(spec, result) for spec in operands)


def _alike(one: TensorSpec, other: TensorSpec) -> bool:
    return all(a == b for length, a, b in zip(one.shape, one.stride, other.stride, strict=True) if length > 1)


def _goes_into_rows(source: TensorSpec, result: TensorSpec) -> bool:
    """Whether the last dimension stays, and others go: neighbours in memory belong to different sums."""
    sums = math.prod(result.shape)
    return len(source.shape) > 1 and 1 < sums < math.prod(source.shape) and source.shape[-1] in result.shape[-2:]
