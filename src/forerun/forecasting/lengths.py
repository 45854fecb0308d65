"""Which batch lengths to trace, and a quantity at any length from those traced.

Steps of one run differ in length; tracing each would waste time. A few lengths across the plan are traced and a
polynomial in the padded length (attention makes it quadratic at most) goes through them.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction

from forerun.data.plan import BatchPlan, BatchShape

TRACED_LENGTHS = 3


def shapes_to_trace(plan: BatchPlan, micro_batch_size: int) -> list[BatchShape]:
    """Up to three shapes of full micro-batches: shortest, middle, longest; one where all are alike."""
    full = sorted({s.length for s, number in plan.shapes if s.size == micro_batch_size and number > 0})
    lengths = full or [plan.longest.length]
    if len(lengths) > TRACED_LENGTHS:
        weights = [s.length for s, number in plan.shapes for _ in range(number) if s.size == micro_batch_size]
        middle = sorted(weights)[len(weights) // 2]
        lengths = sorted({lengths[0], middle, lengths[-1]})
    size = micro_batch_size if full else plan.longest.size
    return [BatchShape(size, length) for length in lengths]


def at_length(values: Mapping[int, float], length: float) -> float:
    """The value at `length` by Lagrange's polynomial through `values` (length → value), never below zero."""
    if len(values) == 1:
        return next(iter(values.values()))
    return max(0.0, sum(value * basis(list(values), node, length) for node, value in values.items()))


def basis(nodes: Sequence[int], node: int, length: float) -> float:
    """Lagrange's polynomial that is 1 at `node` and 0 at the other nodes."""
    product = 1.0
    for other in nodes:
        if other != node:
            product *= (length - other) / (node - other)
    return product


def exact_basis(nodes: Sequence[int], node: int, length: int) -> Fraction:
    """The same polynomial, as a fraction."""
    product = Fraction(1)
    for other in nodes:
        if other != node:
            product *= Fraction(length - other, node - other)
    return product
