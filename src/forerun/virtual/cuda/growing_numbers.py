"""What a call does as whole numbers, and the line through two calls that differ in how much they were given."""

import dataclasses
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from forerun.trace import Call

NEAR = 0.02
"""How far the totals of a call may be from the line: kernels round their memory up."""


class NoLineError(ValueError):
    """Two calls differ in more than whole numbers."""


def on_line(first: Any, second: Any, share: Fraction) -> Any:
    """`first` and what `second` has more than it, `share` times: of whole numbers, also within tuples and records.

    Raises `NoLineError` where anything else differs.
    """
    if first is second or first == second:
        return second
    if type(first) is not type(second):
        raise NoLineError
    if type(first) is int:
        return first + int((second - first) * share)
    if isinstance(first, tuple) and len(first) == len(second):
        return tuple(on_line(one, other, share) for one, other in zip(first, second, strict=True))
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        names = [each.name for each in dataclasses.fields(first)]
        values = {name: on_line(getattr(first, name), getattr(second, name), share) for name in names}
        return dataclasses.replace(first, **values)
    raise NoLineError


def has_grown(before: Any, now: Any, by: int) -> bool:
    """Whether whole numbers, within tuples, are the same or have grown `by` so much, and nothing else differs."""
    if before == now:
        return True
    if isinstance(before, tuple) and isinstance(now, tuple) and len(before) == len(now):
        return all(has_grown(one, other, by) for one, other in zip(before, now, strict=True))
    return type(before) is int and type(now) is int and now - before == by


def are_near(work: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether what two calls did is as much, in bytes that they allocate, bytes that they move, and FLOP."""
    return all(abs(one - two) <= NEAR * max(one, two) for one, two in zip(_totals(work), _totals(other), strict=True))


def _totals(work: Iterable[Any]) -> tuple[int, int, int]:
    allocated = moved = flops = 0
    for each in work:
        if isinstance(each, Call):
            moved, flops = moved + each.bytes_read + each.bytes_written, flops + each.flops
        elif isinstance(each, int):
            allocated += each
    return allocated, moved, flops
