"""Stages by a counter that the program raises itself: `global_step += 1; if global_step == 1000: unfreeze()`.

The counter stays as it is. Once enough steps were seen, conditions that compare it with a number that it reaches within
the run are answered as they are from then on, and what follows is another stage of the loop (`loop_stages.py`).

Not covered: conditions with further parts, counters of a library's trainer, and what follows from a counter by
arithmetic.
"""

import ast
import operator
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from forerun.virtual.cuda.later_loops import FUNCTIONS

CROSSES = "__forerun_crosses__"
"""Name in the script's module: what answers such a condition."""
ORDERS = {ast.Eq: operator.eq, ast.GtE: operator.ge, ast.Gt: operator.gt, ast.Lt: operator.lt, ast.LtE: operator.le}
MOST_STAGES = 3
"""Of one program that are begun so."""


@dataclass
class _Crossing:
    """A condition of a counter, and when it was asked."""

    kind: str
    limit: float = 0.0
    readings: list[tuple[float, int]] = field(default_factory=list)
    """The counter, and the optimizer steps so far."""
    is_past: bool = False
    """It is answered as behind the limit."""
    was_told: bool = False
    """Of one that holds once: it did."""

    def steps(self) -> float | None:
        """Optimizer steps until the counter is at its limit; None where it does not rise towards it."""
        (first, before), (last, now) = self.readings[0], self.readings[-1]
        if now <= before or last <= first or self.limit <= last or self.is_past:
            return None
        return before + (self.limit - first) * (now - before) / (last - first)


@dataclass
class OwnCounters:
    """The counters of one program that decide how it trains."""

    steps: Callable[[], int] = lambda: 0
    """Optimizer steps so far, those of earlier stages included."""
    _crossings: dict[str, _Crossing] = field(default_factory=dict)
    """By line."""
    _begun: int = 0

    def crosses(self, counter: Any, limit: Any, kind: str, line: str) -> Any:
        """What a condition at a line says of a counter."""
        answer = getattr(operator, kind)(counter, limit)
        if type(counter) is not int or type(limit) not in (int, float):
            return answer
        crossing = self._crossings.setdefault(line, _Crossing(kind))
        crossing.limit = limit
        crossing.readings.append((counter, self.steps()))
        if not crossing.is_past:
            return answer
        if kind == "eq":
            crossing.was_told, is_first = True, not crossing.was_told
            return is_first
        return kind in ("ge", "gt")

    def next_stage(self, steps: int) -> tuple[float, str] | None:
        """Go past the limit that is reached next in a run of so many steps.

        Returns the steps until there and how the stage ends, in words; None where no limit is left.
        """
        due = {line: at for line, each in self._crossings.items() if (at := each.steps()) is not None and at < steps}
        if not due or self._begun >= MOST_STAGES:
            return None
        at, self._begun = min(due.values()), self._begun + 1
        lines = [line for line, each in due.items() if each <= at]
        for line in lines:
            self._crossings[line].is_past = True
        return at, f"step {at:,.0f}, by the condition at {', '.join(lines)}"


def mark_counters(
    tree: ast.Module, name: str, scopes: Callable[[ast.AST], bool], decides: Callable[[ast.If], bool]
) -> bool:
    """Let conditions of counters that a file raises be answered in its `scopes`; returns whether there are any."""
    raised = {name for node in ast.walk(tree) for name in _raised_by(node)}
    is_marked = False
    for node in _within(tree, scopes, False) if raised else ():
        test = node.test
        kind = _kind(test, raised)
        if kind and (isinstance(node, ast.IfExp) or decides(node)):
            assert isinstance(test, ast.Compare)
            words = [ast.Constant(kind), ast.Constant(f"{name}:{node.lineno}")]
            call = ast.Call(ast.Name(CROSSES, ast.Load()), [test.left, test.comparators[0], *words], [])
            for part in (call, call.func, *words):
                ast.copy_location(part, test)
            node.test, is_marked = call, True
    return is_marked


def _raised_by(node: ast.AST) -> Iterator[str]:
    """What `step += 1` or `step = step + 1` raises, as it is written."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        yield ast.unparse(node.target)
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add):
        places = {ast.unparse(target) for target in node.targets}
        yield from places & {ast.unparse(node.value.left), ast.unparse(node.value.right)}


def _kind(test: ast.expr, raised: Collection[str]) -> str:
    """How a condition compares a counter with something that is none; empty where it is no such condition."""
    if not isinstance(test, ast.Compare) or len(test.ops) > 1 or type(test.ops[0]) not in ORDERS:
        return ""
    left, right = (
        {ast.unparse(part) for part in ast.walk(side) if isinstance(part, ast.Name | ast.Attribute)}
        for side in (test.left, test.comparators[0])
    )
    is_counter = bool(left & set(raised)) and not right & set(raised)
    has_more = any(isinstance(part, ast.Mod | ast.Call) for part in ast.walk(test))
    return ORDERS[type(test.ops[0])].__name__ if is_counter and not has_more else ""


def _within(node: ast.AST, scopes: Callable[[ast.AST], bool], is_in: bool) -> Iterator[Any]:
    """Conditions in loops and functions that train."""
    for child in ast.iter_child_nodes(node):
        inside = scopes(child) if isinstance(child, FUNCTIONS) else is_in or scopes(child)
        if isinstance(child, ast.If | ast.IfExp) and inside:
            yield child
        yield from _within(child, scopes, inside)
