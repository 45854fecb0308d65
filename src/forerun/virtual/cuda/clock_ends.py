"""Loops that end by the clock: `while time.time() - start < budget`, or a `break` once an hour is over.

How many steps that is follows from how long a step takes on the card, which is known when it is forecast. The clock
here runs for the host's sake alone.

Not covered: limits that are compared with dates, and those of a library's callbacks (Lightning's `max_time`).
"""

import ast
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from forerun.virtual.cuda.loop_counters import REACHED, RISING, compared_in, number_of

CLOCKS = {"time", "perf_counter", "monotonic", "process_time", "timer", "default_timer"}
"""Functions that return seconds."""
READING = "__forerun_reading__"
"""Name of what a clock says."""


@dataclass(frozen=True)
class ClockEnd:
    """When the clock ends a loop."""

    line: str
    seconds: float
    """Of the loop from its first turn on."""
    place: int = 0
    """Of the loop among those around the step, from the innermost one on."""
    is_only: bool = True
    """Nothing else says how often it turns."""


def clock_end_of(loop: Any, line: str, names: Mapping[str, Any]) -> ClockEnd | None:
    """What a clock says of a loop; None where none ends it."""
    ends = [seconds for test in _tests(loop) for seconds in _seconds(test, loop, names)]
    return ClockEnd(line, min(ends)) if ends else None


def _tests(loop: Any) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Sides of comparisons that end a loop when the first has grown as large as the second."""
    if isinstance(loop, ast.While):
        yield from compared_in(loop.test, RISING)
    for node in ast.walk(loop) if isinstance(loop, ast.While | ast.For) else ():
        if isinstance(node, ast.If) and any(isinstance(each, ast.Break | ast.Return) for each in node.body):
            yield from compared_in(node.test, REACHED)


def _seconds(test: tuple[ast.expr, ast.expr], loop: Any, names: Mapping[str, Any]) -> Iterator[float]:
    """Seconds until the first side of a comparison, which must follow from a clock, is as large as the second."""
    measured, limit = _WithReadings(loop).visit(_copy(test[0])), number_of(test[1], names)
    if limit is None or not any(isinstance(part, ast.Name) and part.id == READING for part in ast.walk(measured)):
        return
    at_zero, at_one = (number_of(measured, {**names, READING: reading}) for reading in (0.0, 1.0))
    if at_zero is None or at_one is None or at_one <= at_zero:
        return
    rate = at_one - at_zero
    seconds = limit / rate if at_zero else limit / rate - time.time()
    if seconds > 0:
        yield seconds


class _WithReadings(ast.NodeTransformer):
    """Puts a name in the place of clocks, and of variables of the loop that follow from them."""

    def __init__(self, loop: Any) -> None:
        self.values: dict[str, ast.expr] = {}
        for node in ast.walk(loop):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and any(map(_is_clock, ast.walk(node.value))):
                self.values[ast.unparse(node.targets[0])] = node.value

    def visit(self, node: ast.AST) -> Any:
        if _is_clock(node):
            return ast.copy_location(ast.Name(READING, ast.Load()), node)
        if isinstance(node, ast.Name | ast.Attribute) and (value := self.values.pop(ast.unparse(node), None)):
            return self.visit(_copy(value))
        return self.generic_visit(node)


def _is_clock(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and not node.args and ast.unparse(node.func).rpartition(".")[2] in CLOCKS


def _copy(node: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(node), mode="eval").body
