"""Loops of a script that trains: how often they run, and what the script does after each pass of them.

A program is stopped when its steps repeat, which is in its innermost loop. What a loop around that one does beside
them, such as an evaluation after each epoch, was not reached then. So the script's loops that train are compiled inside
a `try`: the exception ends each of them once, innermost first, the script goes on to its next step, and what it did
until there is the rest of that loop's turn. Loops over what a call returns are counted when they begin.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from forerun.virtual.cuda.later_loops import (
    BODIES,
    FUNCTIONS,
    LOOPS,
    STOPPED,
    called_in,
    functions_that_train,
    is_in_loop,
    trains_by,
    within_try,
)
from forerun.virtual.cuda.length import COMPREHENSIONS, WRAPPERS, name_of

GOES_ON_BEHIND, COUNTED, COUNTED_SPLITS = "__forerun_goes_on_behind__", "__forerun_counted__", "__forerun_splits__"
"""Names in the script's module: what decides whether a loop is ended, and what notes how often one will run."""


@dataclass
class ScriptLoops:
    """The loops of one script."""

    file_name: str
    goes_on_behind: Callable[[str], bool]
    """Asked with the line of a loop around which there is another one: whether the script goes on behind it."""
    counts: dict[str, int] = field(default_factory=dict)
    """Turns of the loops that were counted when they began, by file and line."""

    def mark(self, tree: ast.Module) -> None:
        """Make the loops of a script that train endable and counted."""
        functions = functions_that_train(tree)
        self._mark_in(tree, False, functions)
        for node in ast.walk(tree):
            if isinstance(node, ast.For) and _trains(node, functions):
                node.iter = self._counted(node.iter, node.lineno)
            elif isinstance(node, COMPREHENSIONS) and _trains(node, functions):
                for generator in node.generators:
                    generator.iter = self._counted(generator.iter, node.lineno)

    def names(self, stopped: type[BaseException]) -> dict[str, Any]:
        """What the marked script's module needs."""
        return {
            STOPPED: stopped, GOES_ON_BEHIND: self._goes_on, COUNTED: self._note, COUNTED_SPLITS: self._note_splits,
        }  # fmt: skip

    def _mark_in(self, node: ast.AST, is_nested: bool, functions: set[str]) -> None:
        for body in _bodies(node):
            for place, statement in enumerate(body):
                is_loop = isinstance(statement, LOOPS)
                inside = (is_nested or is_loop) and not isinstance(statement, (*FUNCTIONS, ast.ClassDef))
                self._mark_in(statement, inside, functions)
                if is_loop and _trains(statement, functions):
                    body[place] = within_try(statement, f"{GOES_ON_BEHIND}({statement.lineno}, {is_nested})")

    def _goes_on(self, line: int, is_nested: bool) -> bool:
        """Whether the script goes on behind the loop of a line, out of which the exception came."""
        around = is_nested or is_in_loop(sys._getframe(1))
        return around and self.goes_on_behind(f"{self.file_name}:{line}")

    def _counted(self, node: ast.expr, line: int) -> ast.expr:
        """The same expression, whose length is noted where it is what a call returns."""
        if not isinstance(node, ast.Call):
            return node
        if node.args and name_of(node.func) in WRAPPERS:
            node.args[0] = self._counted(node.args[0], line)
            return node
        if isinstance(node.func, ast.Attribute) and node.func.attr == "split":  # of one of scikit-learn's splitters
            node.func.value = _call(COUNTED_SPLITS, node.func.value, line)
        return _call(COUNTED, node, line)

    def _note(self, value: Any, line: int) -> Any:
        if isinstance(value, list | tuple | set | dict):
            self.counts[f"{self.file_name}:{line}"] = len(value)
        return value

    def _note_splits(self, owner: Any, line: int) -> Any:
        count = getattr(owner, "n_splits", None)
        if isinstance(count, int):
            self.counts[f"{self.file_name}:{line}"] = count
        return owner


def _bodies(node: ast.AST) -> Iterator[list[Any]]:
    """The lists of statements in a node."""
    for name in BODIES:
        part = getattr(node, name, None)
        if isinstance(part, list):  # a lambda's body is an expression
            yield from (handler.body for handler in part) if name == "handlers" else (part,)
    yield from (case.body for case in getattr(node, "cases", []))


def _trains(node: ast.AST, functions: set[str]) -> bool:
    return any(trains_by(call, functions) for call in called_in([node]))


def _call(name: str, value: ast.expr, line: int) -> ast.Call:
    call = ast.Call(ast.Name(name, ast.Load()), [value, ast.Constant(line)], [])
    for node in (call, call.func, call.args[1]):
        ast.copy_location(node, value)
    return call
