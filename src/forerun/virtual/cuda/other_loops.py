"""Further loops of the same optimizer in each turn of the loop around them: one set of rows after another in an epoch.

Steps are seen in the first of them. Once it is ended the program goes on, and the next step shows the loop that it is
in: by its line, or by who calls the function that has it. What the loops around that step say counts beside the first.

Not covered: the time of its steps, which is taken for that of those seen. One in a branch that some turns alone take is
no such loop but what follows a step (`turn_branches.py`).
"""

import ast
import linecache
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

from forerun.virtual.cuda.later_loops import loops_of
from forerun.virtual.cuda.lines import is_library, program_line
from forerun.virtual.cuda.staged_turns import names_of
from forerun.virtual.cuda.trainer_lengths import ProgramLength


@dataclass
class OtherLoops:
    """The loops in which the steps of one training loop were made."""

    uncounted: list[str] = field(default_factory=list)
    """Lines of the steps of those of which nobody says how often they run."""
    _own: set[Hashable] = field(default_factory=set)
    """Places of the steps that were seen."""
    _earlier: frozenset[Hashable] = frozenset()
    """The same of training loops before it."""
    _others: set[Hashable] = field(default_factory=set)

    def note_step(self) -> None:
        """A step is made in the loop that is seen."""
        self._own.add(_place())

    def of_next_loop(self) -> "OtherLoops":
        """The same of another training loop: the steps of this one are its own."""
        return OtherLoops(_earlier=frozenset(self._earlier | self._own))

    def counted(
        self, length: ProgramLength | None, find: Callable[[], ProgramLength | None]
    ) -> ProgramLength | None:  # fmt: skip
        """The length with that of the loop which the step behind a rest is in, where it is another one.

        `find` says the length by the loops around that step.
        """
        place = _place()
        if length is None or not length.loops or not self._own or place in self._own | self._earlier | self._others:
            return length
        self._others.add(place)
        if _is_of_some_turns():
            return length
        other = find()
        if other is None or not other.loops:
            self.uncounted.append(program_line())
            return length
        if other.loops[-1][0] != length.loops[-1][0] or not length.steps:
            return length
        share = (length.steps + other.steps) / length.steps
        epoch = None if length.steps_per_epoch is None else round(share * length.steps_per_epoch)
        source = f"{length.source} and those at {', '.join(line for line, _ in other.loops)}"
        return replace(length.scaled(share, length.loops[0][0]), steps_per_epoch=epoch, source=source)


def _place() -> Hashable:
    """The innermost loop of the program that is running, and where its functions were called from there up."""
    frame: Any = sys._getframe(2)
    place = list[tuple[str, int]]()
    while frame is not None:
        path = frame.f_code.co_filename
        if not is_library(path):
            if place:
                place.append((path, frame.f_lasti))
            elif around := [first for first, last in loops_of(frame) if first <= frame.f_lineno <= last]:
                place.append((path, max(around)))
        frame = frame.f_back
    return tuple(place)


def _is_of_some_turns() -> bool:
    """Whether a branch around what is running is of some turns: by a remainder, or by what a loop counts with."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        if not is_library(frame.f_code.co_filename) and _has_condition_of_turns(
            frame.f_code.co_filename, frame.f_lineno
        ):
            return True
        frame = frame.f_back
    return False


def _has_condition_of_turns(path: str, line: int) -> bool:
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return False
    around = [node for node in ast.walk(tree) if getattr(node, "lineno", line + 1) <= line <= (_last_line(node) or 0)]
    targets = {name for node in around if isinstance(node, ast.For) for name in names_of(node.target)}
    tests = [node.test for node in around if isinstance(node, ast.If)]
    return any(
        isinstance(part, ast.Mod) or (isinstance(part, ast.Name) and part.id in targets)
        for test in tests
        for part in ast.walk(test)
    )


def _last_line(node: ast.AST) -> int | None:
    return getattr(node, "end_lineno", None)
