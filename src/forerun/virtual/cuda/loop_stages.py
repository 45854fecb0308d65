"""Turns of a loop from which on a program does something else: a backbone that thaws at epoch 5, pictures that grow.

A program is stopped once its steps repeat, long before such a turn. What the conditions in a `for` loop over a range
say of the number that it counts is asked for every turn when the loop begins. Where the answer changes, a stage begins:
once enough steps of a stage were seen, the loop goes on with the first turn of the next one, whose steps are seen like
those of another training loop (`later_loops.py`). Stages whose steps do the same work are one.

Not covered: loops whose counter the program raises itself, conditions in functions that are given the number, and what
changes a little with every turn.
"""

import ast
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from forerun.virtual.cuda.later_loops import FUNCTIONS, LOOPS, called_in, loops_of
from forerun.virtual.cuda.lines import is_library, path_name
from forerun.virtual.cuda.loop_sizes import looped_over, value_of
from forerun.virtual.cuda.records import Stage

MOST_STAGES = 4
"""Of one loop that are seen."""
MOST_TURNS = 2_000
"""Of a loop whose conditions are asked for each turn; of longer ones around the numbers that they compare with."""
HARMLESS = (
    "print", "log", "info", "debug", "write", "update", "append", "save", "eval", "valid", "test", "step", "add_",
    "plot", "sample", "flush", "set_description", "set_postfix", "synchronize", "time", "dump", "format", "makedirs",
    "item", "cpu", "detach", "numpy", "mean", "clone", "state_dict", "range", "len", "str", "round", "isinstance",
)  # fmt: skip
"""Beginnings of names of functions that change nothing about how a program trains."""


@dataclass(frozen=True)
class CountedLoop:
    """A loop over a range, and the conditions in it that change how it trains."""

    name: str
    """Of what it counts with."""
    tests: tuple[ast.expr, ...]

    def boundaries(self, turns: range, names: Mapping[str, Any]) -> list[int]:
        """Numbers of the turns, but for the first, from which on one of the conditions has another answer."""
        turns_of_change: set[int] = set()
        for test in self.tests:
            if any(
                isinstance(names.get(part.id), torch.Tensor) for part in ast.walk(test) if isinstance(part, ast.Name)
            ):
                continue  # to ask it would be work of the device
            others = self._numbers(turns, test, names)
            results = {number: value_of(test, {**names, self.name: turns[number]}) for number in others}
            if any(isinstance(result, bool) for result in results.values()):
                turns_of_change |= _changes([bool(results[number]) for number in others], others)
        return sorted(turns_of_change - {0})[:MOST_STAGES]

    def _numbers(self, turns: range, test: ast.expr, names: Mapping[str, Any]) -> list[int]:
        if len(turns) <= MOST_TURNS:
            return list(range(len(turns)))
        near: set[int] = set()
        for part in (each for node in ast.walk(test) if isinstance(node, ast.Compare) for each in _sides(node)):
            limit = looped_over(part, names)
            for value in limit if isinstance(limit, list | tuple | set) else [limit]:
                if isinstance(value, int | float):
                    number = int((value - turns.start) // turns.step)
                    near.update(range(max(0, number - 2), min(len(turns), number + 4)))
        return sorted(near)


@dataclass
class LoopStages:
    """The stages of the one loop of a program that has some."""

    _is_enough: Callable[[], bool] = lambda: False
    """Whether enough steps of the stage were seen, and the loop that makes them was ended."""
    _next_stage: Callable[[Stage], bool] = lambda stage: False
    """Begins with the next one, behind a stage; returns whether there is one."""
    _line: str = ""
    _boundaries: list[int] = field(default_factory=list)
    """Numbers of the turns with which stages begin that are still to come."""
    _is_due: bool = False

    def follow(self, is_enough: Callable[[], bool], next_stage: Callable[[Stage], bool]) -> None:
        """Ask these whether enough was seen, and tell of the end of a stage."""
        self._is_enough, self._next_stage = is_enough, next_stage

    def of(self, turns: range, line: str, loop: CountedLoop, frame: types.FrameType) -> "range | StagedRange":
        """What the loop at a line runs over in place of its range."""
        if self._line:
            return turns
        boundaries = loop.boundaries(turns, frame.f_globals | frame.f_locals)
        if not boundaries:
            return turns
        self._line, self._boundaries = line, boundaries
        return StagedRange(turns, self)

    def goes_on(self) -> bool:
        """Enough steps were seen: whether the loop that makes them goes on, with the first turn of the next stage.

        Where they are made by a loop within the staged one, that is ended first.
        """
        self._is_due = bool(self._boundaries) and innermost_loop(sys._getframe(1)) == self._line
        return self._is_due

    def next_turn(self, number: int, began: int, count: int) -> tuple[int, int]:
        """The next turn, or where enough was seen the first of the next stage, and that with which its stage began."""
        if not self._boundaries:
            return number, began
        later = self._boundaries[0]
        if later > number and not (self._is_due or self._is_enough()):
            return number, began
        self._is_due = False
        until = f"turn {later + 1} of the loop at {self._line}"
        if not self._next_stage(Stage((later - began) / count, self._line, until)):
            self._boundaries.clear()
            return number, began
        self._boundaries.pop(0)
        return later, later


class StagedRange:
    """A range whose turns between the stages of a loop are left out once enough of them were made."""

    def __init__(self, turns: range, stages: LoopStages) -> None:
        self._turns, self._stages = turns, stages

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[int]:
        number = began = 0
        while number < len(self._turns):
            yield self._turns[number]
            number, began = self._stages.next_turn(number + 1, began, len(self._turns))


def staged_loops(tree: ast.AST, name: str, does_train: Callable[[ast.AST], bool]) -> dict[str, CountedLoop]:
    """By line of a file, the loops that train and whose number decides how."""
    loops = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and does_train(node):
            tests = tuple(_tests(node, node.target.id))
            if tests:
                loops[f"{name}:{node.lineno}"] = CountedLoop(node.target.id, tests)
    return loops


def innermost_loop(frame: types.FrameType | None) -> str:
    """File and line of the innermost loop of the program that is running, from a frame on; empty for none."""
    while frame is not None:
        path = frame.f_code.co_filename
        if not is_library(path):
            inside = [first for first, last in loops_of(frame) if first <= frame.f_lineno <= last]
            if inside or frame.f_code.co_name == "<module>":
                return f"{path_name(path)}:{max(inside)}" if inside else ""
        frame = frame.f_back
    return ""


def _tests(loop: ast.For, name: str) -> Iterator[ast.expr]:
    """Conditions of what a loop counts with, without remainders, which decide more than what is told or saved."""
    for node in _within(loop):
        is_branch = isinstance(node, ast.If) and (_changes_training(node.body) or _changes_training(node.orelse))
        if (is_branch or isinstance(node, ast.IfExp)) and _counts(node.test, name):
            yield node.test
        is_flag = isinstance(node, ast.Assign) and isinstance(node.value, ast.Compare | ast.BoolOp)
        if is_flag and _counts(node.value, name):
            yield node.value


def _within(node: ast.AST) -> Iterator[Any]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            yield child
            yield from _within(child)


def _counts(test: ast.expr, name: str) -> bool:
    """Whether a condition compares what is counted with something, and is no period."""
    parts = list(ast.walk(test))
    has_name = any(isinstance(part, ast.Name) and part.id == name for part in parts)
    is_compared = any(isinstance(part, ast.Compare) for part in parts)
    return has_name and is_compared and not any(isinstance(part, ast.Mod | ast.Call) for part in parts)


def _changes_training(body: Collection[ast.stmt]) -> bool:
    """Whether statements do more than tell, save or evaluate something."""
    for statement in body:
        if isinstance(statement, ast.Break | ast.Continue | ast.Return | ast.Raise | ast.Pass | ast.Global):
            continue
        if isinstance(statement, (ast.If, ast.With, *LOOPS)):
            orelse = getattr(statement, "orelse", [])
            if _changes_training(statement.body) or _changes_training(orelse):
                return True
        elif not isinstance(statement, ast.Expr) or not _is_harmless(statement):
            return True
    return False


def _is_harmless(statement: ast.Expr) -> bool:
    calls = [call.rpartition(".")[2].lstrip("_").lower() for call in called_in([statement])]
    return all(call.startswith(HARMLESS) for call in calls)


def _sides(compared: ast.Compare) -> list[ast.expr]:
    return [compared.left, *compared.comparators]


def _changes(answers: list[bool], numbers: list[int]) -> set[int]:
    """Numbers at which an answer changes: to yes, and back where it was yes for more than one turn."""
    changes, since = set(), 0
    for place in range(1, len(answers)):
        if answers[place] != answers[place - 1]:
            if answers[place] or numbers[place] - numbers[since] > 1:
                changes.add(numbers[place])
            since = place
    return changes
