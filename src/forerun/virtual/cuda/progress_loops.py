"""Loops that get on only where a value of the device lets them: a solver's step whose error is small enough.

`while t < 1: …; if error < tol: t += h` never ends where the error is always 1. What such a branch asks for is answered
so that the loop gets on; after `ROUNDS` turns in which it did not, in another way.

Not covered: loops whose counter is in a method that they call.
"""

import ast
import linecache
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from forerun.virtual.cuda.later_loops import FUNCTIONS
from forerun.virtual.cuda.length import locals_of
from forerun.virtual.program_lines import INSIDE

ROUNDS = 10
"""Turns without getting on after which the answer is another one."""
SMALL, LARGE = (1e-6, 1e-12, 0.0), (1e6, float("inf"))
"""Answers below and above what a number may be compared with; not 0 at first, by which a program may divide."""


@dataclass(frozen=True)
class _Question:
    """A statement by whose value a loop gets on."""

    lines: tuple[int, int]
    counters: tuple[str, ...]
    """Names that the loop's condition has and that change in the branch."""
    is_small_first: bool
    is_truth: bool
    """The truth value with which it gets on."""


@dataclass
class _Turns:
    values: tuple[Any, ...]
    """Of the counters when it was asked last."""
    stalls: int = 0
    place: int = 0
    """Of the answer that lets the loop get on."""


class ProgressLoops:
    """Answers the questions by which loops get on."""

    def __init__(self) -> None:
        self._turns: dict[tuple[int, int], _Turns] = {}
        """By the frame that runs a loop, and its instruction."""

    def answer(self, answer: Any) -> Any:
        """What a question gets that would have `answer`, a floating number or a truth value."""
        if not isinstance(answer, bool | float):
            return answer
        request = _asking()
        if request is None:
            return answer
        question, key, values = request
        answers: tuple[Any, ...] = (SMALL + LARGE) if question.is_small_first else (LARGE + SMALL)
        if isinstance(answer, bool):
            answers = (question.is_truth, not question.is_truth)
        turns = self._turns.setdefault(key, _Turns(values))
        turns.stalls = 0 if turns.values != values else turns.stalls + 1
        turns.values = values
        if turns.stalls > ROUNDS:
            turns.stalls, turns.place = 0, turns.place + 1
        return answers[turns.place % len(answers)]


def _asking() -> tuple[_Question, tuple[int, int], tuple[Any, ...]] | None:
    """The question that the running code asks, where it is in, and what the loop's counters are."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        path, line = frame.f_code.co_filename, frame.f_lineno
        if not any(part in path for part in INSIDE):
            for each in _questions(path):
                if each.lines[0] <= line <= each.lines[1]:
                    names = {**frame.f_globals, **locals_of(frame)}
                    values = tuple(_mark(names.get(name)) for name in each.counters)
                    return each, (id(frame), frame.f_lasti), values
            return None
        frame = frame.f_back
    return None


def _mark(value: Any) -> Any:
    """A number itself, and which object anything else is."""
    return value if isinstance(value, int | float) else id(value)


@cache
def _questions(path: str) -> list[_Question]:
    """What decides whether the `while` loops of a file get on."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return []
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.While)]
    return [question for loop in loops for question in _of_loop(loop)]


def _of_loop(loop: ast.While) -> Iterator[_Question]:
    counters = _names(loop.test)
    always = {name for statement in loop.body if not isinstance(statement, ast.If) for name in _assigned([statement])}
    for branch in (statement for statement in loop.body if isinstance(statement, ast.If)):
        inside, other = _assigned(branch.body) & counters, _assigned(branch.orelse) & counters
        moved = (inside | other) - always
        if not moved or (inside and other):
            continue
        decisive = _names(branch.test) - counters
        sources: list[ast.AST] = [branch.test]
        sources += [each for each in loop.body if isinstance(each, ast.Assign) and _assigned([each]) & decisive]
        is_small = _lets_small_pass(branch.test, decisive) == bool(inside)
        is_turned = isinstance(branch.test, ast.UnaryOp) and isinstance(branch.test.op, ast.Not)
        for each in sources:
            lines = (each.lineno, each.end_lineno or each.lineno)  # type: ignore[attr-defined]
            yield _Question(lines, tuple(sorted(moved)), is_small, bool(inside) != is_turned)


def _lets_small_pass(test: ast.expr, decisive: set[str]) -> bool:
    """Whether a condition holds where what it asks for is small."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return not _lets_small_pass(test.operand, decisive)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return True
    is_left = not decisive or bool(_names(test.left) & decisive)
    return isinstance(test.ops[0], ast.Lt | ast.LtE) == is_left


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _assigned(body: list[Any]) -> set[str]:
    """Names that statements give a value, but for those of functions in them."""
    names, waiting = set(), list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif not isinstance(node, FUNCTIONS):
            waiting += ast.iter_child_nodes(node)
    return names
