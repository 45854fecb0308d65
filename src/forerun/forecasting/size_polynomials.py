"""One step at every batch and length of a box, from traces at its corners: each number is a polynomial in both.

Sizes, strides, bytes and FLOP of a step grow at most linearly with the samples and quadratically with the tokens of
each (attention). Traces at two batches and three lengths, laid over each other event by event, give the polynomial of
every number; evaluated in integers, they give the trace at another size, which `traces.py` lets answer only within
the box, and only once traces that are no corner have come out equal in every field (`nearby.py`).

Why a box and a remainder: a decision by size (a window, a limit of a kernel) that is alike at opposite corners is
alike between them, as such conditions are monotone; and what kernels round up (rows to 32, 64 or 128) is a polynomial
only among lengths of one remainder. `test_size_polynomials.py` compares with tracing at sizes drawn at random.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import product
from typing import Any

from forerun.forecasting.lengths import exact_basis
from forerun.forecasting.trace_file import Varying, read_trace, trace_bytes
from forerun.trace import Call, Named, Op, Storage, TensorSpec, Trace

ROUNDING = 128
"""Lengths of one remainder by this are on one polynomial: FlashAttention rounds rows up to 128 (flash_api.cpp), the
memory-efficient kernel to 32 and 64 (`kernel_memory.py`)."""
WHOLE, TURNED = "whole", "turned"
"""Factors that are whole numbers written as floats, and those that are one over a whole number."""
COLUMNS = ("calls", "ops", "storages", "events")


class NotPolynomial(Exception):
    """The traces differ by more than numbers, or a number is on no polynomial. Caught where traces are asked for."""


@dataclass(frozen=True)
class SizeBox:
    """Batches and lengths whose products are the corners; one length is a line of batches."""

    batches: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def corners(self) -> list[tuple[int, int]]:
        """Batch and length of each trace, in the order in which they are laid over each other."""
        return list(product(self.batches, self.lengths))

    def holds(self, batch: int, length: int) -> bool:
        """Whether the size lies within the box and on its polynomials."""
        return (
            self.batches[0] <= batch <= self.batches[-1]
            and self.lengths[0] <= length <= self.lengths[-1]
            and (length - self.lengths[0]) % ROUNDING == 0
        )

    def weights(self, batch: int, length: int) -> list[Fraction]:
        """Lagrange's weight of each corner at a size; they add up to 1."""
        of_batch = [exact_basis(self.batches, node, batch) for node in self.batches]
        of_length = [exact_basis(self.lengths, node, length) for node in self.lengths]
        return [one * other for one, other in product(of_batch, of_length)]


def overlay(traces: Sequence[Trace]) -> bytes:
    """The file of traces laid over each other: what they share once, and every number that differs at all of them.

    Raises:
        NotPolynomial: they do not have the same operators, storages and order.
    """
    first = traces[0]
    if any(trace.events != first.events for trace in traces):
        raise NotPolynomial("other events")
    calls: dict[Call, int] = {}
    numbers: dict[tuple[int, ...], int] = {}
    ops: list[Op] = []
    for row in zip(*(trace.ops for trace in traces), strict=True):
        own = tuple(op.call for op in row)
        if own not in numbers:
            call = _overlaid([trace.calls[number] for trace, number in zip(traces, own, strict=True)])
            numbers[own] = calls.setdefault(call, len(calls))
        ops.append(replace(_overlaid([replace(op, call=0) for op in row]), call=numbers[own]))
    storages = [_overlaid(row) for row in zip(*(trace.storages for trace in traces), strict=True)]
    plain = {f.name: _overlaid([getattr(trace, f.name) for trace in traces]) for f in fields(Trace)
             if f.name not in COLUMNS}  # fmt: skip
    return trace_bytes(Trace(calls=list(calls), ops=ops, storages=storages, events=first.events, **plain))


def trace_at(file: bytes, box: SizeBox, batch: int, length: int) -> Trace:
    """The trace at a size, from the overlay of those at the corners of `box`.

    Raises:
        NotPolynomial: a number is not whole there.
    """
    weights = box.weights(batch, length)
    whole = math.lcm(*(weight.denominator for weight in weights))
    factors = [int(weight * whole) for weight in weights]

    def number(values: Sequence[int]) -> int:
        result, rest = divmod(sum(f * v for f, v in zip(factors, values, strict=True)), whole)
        if rest:
            raise NotPolynomial(f"{list(values)} is not whole at {batch} x {length}")
        return result

    def decode(content: Mapping[str, Any]) -> Any:
        if (values := content.get(Varying.KEY)) is None:
            return content
        kind = content.get(Varying.KIND)
        value = number(values)
        return value if kind is None else float(value) if kind == WHOLE else 1 / value

    return _renumbered(read_trace(file, decode))


def _renumbered(trace: Trace) -> Trace:
    """The same with equal calls once, in the order in which they first run: those that only differ elsewhere."""
    calls: dict[Call, int] = {}
    places = [-1] * len(trace.calls)
    for op in trace.ops:
        if places[op.call] < 0:
            places[op.call] = calls.setdefault(trace.calls[op.call], len(calls))
    if places == list(range(len(places))):
        return trace
    return replace(trace, calls=list(calls), ops=[replace(op, call=places[op.call]) for op in trace.ops])


def _overlaid(values: Sequence[Any]) -> Any:
    """Equal values themselves, and records of which only numbers differ with those as `Varying`."""
    first = values[0]
    if all(type(value) is type(first) and value == first for value in values):
        return first
    if len({type(value) for value in values}) > 1:
        raise NotPolynomial(f"other kinds: {values}")
    if isinstance(first, Call | TensorSpec | Named | Storage | Op):
        return type(first)(*(_overlaid([getattr(value, f.name) for value in values]) for f in fields(first)))
    if isinstance(first, tuple | list):
        if len({len(value) for value in values}) > 1:
            raise NotPolynomial(f"other lengths: {values}")
        return type(first)(_overlaid(column) for column in zip(*values, strict=True))
    if isinstance(first, int) and not isinstance(first, bool):
        return Varying(values)
    if isinstance(first, float):
        return _overlaid_factors(values)
    raise NotPolynomial(f"neither equal nor numbers: {values}")


def _overlaid_factors(values: Sequence[float]) -> Varying:
    if all(value.is_integer() for value in values):
        return Varying([int(value) for value in values], WHOLE)
    turned = [round(1 / value) if value else 0 for value in values]
    if 0 in turned or any(1 / number != value for number, value in zip(turned, values, strict=True)):
        raise NotPolynomial(f"a factor that is no whole number nor one over one: {values}")
    return Varying(turned, TURNED)


def box_text(box: SizeBox | None) -> str:
    """The box as JSON, for the facts of a kept entry; None is the box of what has no polynomials."""
    return json.dumps(None if box is None else [box.batches, box.lengths])


def box_of(text: str) -> SizeBox | None:
    """The box of such a text."""
    content = json.loads(text)
    return None if content is None else SizeBox(tuple(content[0]), tuple(content[1]))
