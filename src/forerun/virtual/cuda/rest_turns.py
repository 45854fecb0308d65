"""Loops of what a program does between its steps, such as a sampler's thousand turns: ended early where they take long.

What such a loop runs over is handed to it by a generator, which ends once the rest takes too long here; the share of
the turns that ran stands for all, and the program goes on behind the loop. Of loops in one another the outer one is
ended, if it has made a turn; if it has not, the inner one is, and the outer one behind that turn. Loops that call
modules under gradients are left alone: they are a part of the next step.
"""

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import length_hint
from typing import Any

import torch

from forerun.virtual.cuda.loop_sizes import WRAPPERS, name_of

TURNS = "__forerun_turns__"
"""Name in the script's module: what hands a loop its turns."""
COUNTABLE = {"range", "trange", "reversed", "linspace", "arange"}
"""Calls whose turns are computed one after another, such as the times of a sampler."""


def mark_turns(tree: ast.Module, does_train: Callable[[ast.AST], bool]) -> bool:
    """Let loops of a file be ended early that do not train and run over numbers; returns whether there are any."""
    is_marked = False
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and not does_train(node):
            inner = node
            values = node.iter
            while isinstance(values, ast.Call) and values.args and name_of(values.func) in WRAPPERS - {"trange"}:
                inner, values = values, values.args[0]
            if not isinstance(values, ast.Call) or name_of(values.func) not in COUNTABLE:
                continue
            call = ast.Call(ast.Name(TURNS, ast.Load()), [values], [])
            for part in (call, call.func):
                ast.copy_location(part, values)
            if isinstance(inner, ast.Call):
                inner.args[0] = call
            else:
                inner.iter = call
            is_marked = True
    return is_marked


@dataclass
class _Loop:
    """One that is running, since an event of the trace."""

    count: int
    begin: int
    turns: int = 0
    """That are over."""
    is_last_turn: bool = False
    """One in it was ended in its first turn."""
    is_of_step: bool = False


@dataclass
class RestTurns:
    """The loops of what is done between two steps."""

    is_too_long: Callable[[], bool]
    cut: Callable[[int, int, float], None]
    """Told of a loop that is ended: the events of the trace between which it ran, and the share of its turns."""
    _running: list[_Loop] = field(default_factory=list)

    @property
    def are_running(self) -> bool:
        """Whether there is one that could be ended."""
        return bool(self._running)

    def note_call(self) -> None:
        """A module is called: under gradients the loops that are running are a part of a step."""
        if self._running and torch.is_grad_enabled():
            for loop in self._running:
                loop.is_of_step = True

    def over(self, values: Any, events: Callable[[], int]) -> Any:
        """What a loop runs over, as many turns of it as there is time for; `events` says how many the trace has."""
        count = 0 if isinstance(values, torch.Tensor) else length_hint(values, 0)
        return self._turns(values, count, events) if count > 1 else values

    def _turns(self, values: Iterable[Any], count: int, events: Callable[[], int]) -> Iterator[Any]:
        loop = _Loop(count, events())
        self._running.append(loop)
        try:
            for value in values:
                if loop.turns and self._ends(loop):
                    self.cut(loop.begin, events(), loop.turns / count)
                    break
                yield value
                loop.turns += 1
        finally:
            if loop in self._running:
                del self._running[self._running.index(loop) :]

    def _ends(self, loop: _Loop) -> bool:
        """Whether a loop is ended before its next turn."""
        if loop.is_of_step:
            return False
        around = self._running[: self._running.index(loop)]
        is_due = loop.is_last_turn or (self.is_too_long() and not any(each.turns for each in around))
        if is_due and around:
            around[-1].is_last_turn = True
        return is_due
