"""Loops that end once a value of the device is small enough: nobody can know when, and here they would never end.

`while error > tol`, `while True: … if error < tol: break`, or a function that says whether it has converged: for
`ROUNDS` turns the question is answered as it was at first, and then so that the loop ends. That holds for loops that
end by this question alone. One that ends otherwise too, by a counter or a token, is left to do so, up to `MOST_ROUNDS`,
and so is one that compares two tensors: a solver of differential equations steps on until its time is that asked for.

Not covered: values that were copied to the host before they are compared, numbers that are read (`item`) and
subtracted there.
"""

import ast
import contextlib
import linecache
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from forerun.virtual.cuda.later_loops import FUNCTIONS, LOOPS
from forerun.virtual.cuda.length import locals_of
from forerun.virtual.program_lines import INSIDE

ROUNDS = 10
"""Turns after which a loop is taken to have converged."""
MOST_ROUNDS = 10_000
"""Turns after which any other loop is."""
ENDING = (0.0, float("inf"), float("-inf")), (0, 2**31 - 1, -(2**31))
"""Answers to a number that is read, floating or whole, one after the other: a comparison with a limit ends by one."""
_Span = tuple[int, int]


@dataclass(frozen=True)
class _Exit:
    """A question by whose answer a loop ends."""

    lines: _Span
    is_only: bool
    compared: tuple[ast.expr, ...] = ()
    """Two names that it compares: a solver goes on until its time is that which is asked for."""


@dataclass(frozen=True)
class Convergence:
    """How a loop was ended, or kept going."""

    answer: Any
    turns: int
    """0 where it goes on."""
    ops: _Span
    """Operators of the trace that its turns are: the first, and the one behind the last."""


@dataclass
class _Turns:
    first_op: int
    answer: Any
    """To the first question."""
    count: int = 0


class ConvergenceLoops:
    """Counts the turns of loops by the questions that end them."""

    def __init__(self) -> None:
        self._turns: dict[tuple[int, int], _Turns] = {}
        """By the frame that runs a loop, and its instruction."""

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """While it is active, an optimizer step ends what was counted: a loop that trains converges by itself."""
        hook = register_optimizer_step_post_hook(lambda *_: self._turns.clear())
        try:
            yield
        finally:
            hook.remove()

    def end(self, answer: Any, op: int) -> Convergence | None:
        """What ends the loop that asks, or keeps it going; None where it is to have `answer`.

        `op` is how many operators there are.
        """
        question = _asking()
        if question is None:
            return None
        key, own = question
        turns = self._turns.setdefault(key, _Turns(op, answer))
        turns.count += 1
        most = ROUNDS if own.is_only else MOST_ROUNDS
        over = turns.count - most
        if own.is_only and isinstance(answer, bool):
            # what changes from turn to turn is not known either: 1 - 1 is no error that is small enough
            is_other, answer = answer is not turns.answer, turns.answer
            if over < 0 and is_other:
                return Convergence(answer, 0, (turns.first_op, op))
        if over < 0:
            return None
        others = (not answer,) if isinstance(answer, bool) else ENDING[isinstance(answer, int)]
        if over >= len(others) - 1 and own.is_only:  # its frame is gone after this, and another has its place
            del self._turns[key]
        return Convergence(others[min(over, len(others) - 1)], turns.count, (turns.first_op, op))


def _asking() -> tuple[tuple[int, int], _Exit] | None:
    """The nearest loop that the running code decides by what it reads."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        path, line = frame.f_code.co_filename, frame.f_lineno
        if not any(part in path for part in INSIDE):
            for each in _exits(path):
                if each.lines[0] <= line <= each.lines[1]:
                    is_progress = bool(each.compared) and all(_is_tensor(part, frame) for part in each.compared)
                    return (id(frame), frame.f_lasti), replace(each, is_only=each.is_only and not is_progress)
        frame = frame.f_back
    return None


def _is_tensor(node: ast.expr, frame: Any) -> bool:
    """Whether a name, or an attribute of one, is a tensor in a frame."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    value = {**frame.f_globals, **locals_of(frame)}.get(node.id) if isinstance(node, ast.Name) else None
    for name in reversed(names):
        value = getattr(value, name, None)
    return isinstance(value, torch.Tensor)


@cache
def _exits(path: str) -> list[_Exit]:
    """Questions that end the `while` loops of a file."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return []
    exits = []
    for loop in (node for node in ast.walk(tree) if isinstance(node, ast.While)):
        is_asked = not isinstance(loop.test, ast.Constant)
        tests = [*([loop.test] if is_asked else []), *_inside(loop.body, None)]
        is_only = len(tests) == 1 and not isinstance(tests[0], ast.BoolOp)
        exits += [_Exit((t.lineno, t.end_lineno or t.lineno), is_only, _compared(t)) for t in tests if t is not None]
    return exits


def _compared(test: ast.expr) -> tuple[ast.expr, ...]:
    """Both sides of a comparison of two names."""
    sides = (test.left, *test.comparators) if isinstance(test, ast.Compare) else ()
    return sides if len(sides) == 2 and all(isinstance(each, ast.Name | ast.Attribute) for each in sides) else ()


def _inside(body: list[Any], test: ast.expr | None, *, nested: bool = False) -> Iterator[ast.expr | None]:
    """The condition of every statement that leaves the loop of `body`; None of one that has none."""
    for statement in body:
        if isinstance(statement, ast.Return | ast.Raise) or (isinstance(statement, ast.Break) and not nested):
            yield test
        elif isinstance(statement, ast.If):
            yield from _inside([*statement.body, *statement.orelse], statement.test, nested=nested)
        elif not isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            is_nested = nested or isinstance(statement, LOOPS)
            for name in ("body", "orelse", "handlers", "finalbody"):
                yield from _inside(getattr(statement, name, []), test, nested=is_nested)
