"""How many optimizer steps a `while` loop makes, by the counter that it is ended by.

`while step < limit`, and `while True` with `if step > limit: break`: the limit is read from the program's variables,
and the counter at two optimizer steps, so that what it counts (steps, tokens, samples) need not be known.
"""

import ast
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

READABLE = (
    ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.operator, ast.UnaryOp, ast.USub, ast.Load,
)  # fmt: skip
RISING, REACHED = (ast.Lt, ast.LtE), (ast.Gt, ast.GtE)
"""Comparisons of a counter with its limit that let a loop go on, and that end it."""


@dataclass
class LoopCounters:
    """Counters of loops at the last step that asked."""

    readings: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By line and counter: its value, and how often it has changed."""

    def turns(self, loop: ast.While, line: str, names: Mapping[str, Any]) -> int | None:
        """Optimizer steps from the loop's first to its last; None where no counter has risen yet."""
        for counter, limit, is_reached in _limits(loop):
            now, end = _value(counter, names), _value(limit, names)
            if now is None or end is None:
                continue
            name = f"{line} {ast.unparse(counter)}"
            before, steps = self.readings.get(name, (now, 0))
            steps += now != before
            self.readings[name] = now, steps
            if now > before and end >= now:
                return steps + 1 + max(0, math.ceil((end - now + is_reached) / (now - before)) - 1)
        return None


def _limits(loop: ast.While) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    """Counters, their limits, and whether the loop still turns at the limit."""
    for test in _conditions(loop.test):
        yield from _compared(test, RISING, ast.LtE)
    for statement in loop.body:
        if isinstance(statement, ast.If) and any(isinstance(each, ast.Break | ast.Return) for each in statement.body):
            yield from _compared(statement.test, REACHED, ast.Gt)


def _conditions(test: ast.expr) -> list[ast.expr]:
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]


def _compared(test: ast.expr, kinds: tuple[type, ...], inclusive: type) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], kinds):
        yield test.left, test.comparators[0], isinstance(test.ops[0], inclusive)


def _value(node: ast.expr, names: Mapping[str, Any]) -> float | None:
    """A number that an expression of names and attributes has now."""
    if not all(isinstance(part, READABLE) for part in ast.walk(node)):
        return None
    try:
        code = compile(ast.fix_missing_locations(ast.Expression(node)), "<counter>", "eval")
        value = eval(code, {"__builtins__": {}, **names})
    except (NameError, AttributeError, TypeError, ArithmeticError):
        return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None
