"""Loops of a program that trains: how often they run, and what the program does after each pass of them.

A program is stopped when its steps repeat, which is in its innermost loop. What a loop around that one does beside
them, such as an evaluation after each epoch, was not reached then. So loops that train, of the script and of its own
modules, are compiled inside a `try`: the exception ends each of them once, innermost first, the program goes on to its
next step, and what it did until there is the rest of that loop's turn. Loops over what a call returns are counted when
they begin.
"""

import ast
import contextlib
import sys
import types
from collections.abc import Callable, Collection, ItemsView, Iterator, KeysView, ValuesView
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from typing import Any

from forerun.virtual.cuda.generator_turns import turns_of
from forerun.virtual.cuda.later_loops import (
    BODIES,
    FUNCTIONS,
    LOOPS,
    STOP,
    STOPPED,
    functions_that_train,
    is_in_loop,
    trains,
    within_try,
)
from forerun.virtual.cuda.length import COMPREHENSIONS, RangeTurns
from forerun.virtual.cuda.lines import is_library, is_of_others, path_name
from forerun.virtual.cuda.loop_sizes import WRAPPERS, name_of
from forerun.virtual.cuda.loop_stages import CountedLoop, LoopStages, decides, staged_loops
from forerun.virtual.cuda.own_counters import CROSSES, mark_counters
from forerun.virtual.cuda.rest_turns import mark_turns
from forerun.virtual.cuda.staged_turns import enumerate_call, enumerated_turns, known_turns, with_length
from forerun.virtual.cuda.trainer_lengths import SAY_THEIR_LENGTH
from forerun.virtual.cuda.turn_branches import mark_branches
from forerun.virtual.put_back import replaced

GOES_ON_BEHIND, COUNTED, COUNTED_SPLITS = "__forerun_goes_on_behind__", "__forerun_counted__", "__forerun_splits__"
"""Names in the script's module: what decides whether a loop is ended, and what notes how often one will run."""
BEGINS = "__forerun_begins__"
"""What is told that a loop begins."""
STAGED, ENUMERATED = "__forerun_staged__", "__forerun_enumerated__"
"""What lets turns of a loop out between its stages, and what does in place of `enumerate`."""


@dataclass
class ScriptLoops:
    """The loops of one program."""

    stopped: type[BaseException]
    """What ends them."""
    goes_on_behind: Callable[[str], bool]
    """Asked with the line of a loop around which there is another one: whether the program goes on behind it."""
    last_part: Callable[[str], bool] = lambda line: False
    """Asked with the line of the last loop, around which there is none: whether the program goes on to its end."""
    trains_again: Callable[[BaseException, types.FrameType], bool] = lambda stop, frame: False
    """Whether more training follows what an exception came out of, somewhere above a frame."""
    next_loop: Callable[[], bool] = lambda: False
    """Asked whether the program goes on with another training loop behind one that a function of it makes."""
    branches: dict[str, Any] = field(default_factory=dict)
    """What decides the branches of its loops (`turn_branches.py`), by its name in a marked module."""
    others: Collection[str] = ()
    """Functions and methods of the program's files that train."""
    stages: LoopStages = field(default_factory=LoopStages)
    begins: Callable[[str], None] = lambda line: None
    """Told the line of a loop that trains when it begins."""
    counts: dict[str, int] = field(default_factory=dict)
    """Turns of the loops that were counted when they began, by file and line."""
    _staged: dict[str, CountedLoop] = field(default_factory=dict)
    """Loops whose number decides how they train, by file and line."""

    def mark(self, tree: ast.Module, path: str) -> bool:
        """Make the loops of a file that train endable and counted; returns whether there are any."""
        functions, name = functions_that_train(tree, self.others), path_name(path)
        self._staged |= staged_loops(tree, name, lambda node: trains([node], functions))
        has_counters = mark_counters(
            tree,
            name,
            lambda node: _does_train(node, functions),
            lambda branch: decides(branch, lambda node: trains([node], functions)),
        )
        has_branches = bool(self.branches) and mark_branches(
            tree, name, functions, lambda node: isinstance(node, LOOPS) and trains([node], functions)
        )
        has_turns = bool(self.branches) and mark_turns(tree, lambda node: trains([node], functions))
        if not self._mark_in(tree, name, False, functions):
            return has_branches or has_counters or has_turns
        for node in ast.walk(tree):
            if isinstance(node, ast.For) and trains([node], functions):
                line = f"{name}:{node.lineno}"
                call = enumerate_call(node.iter) if line in self._staged else None
                node.iter = _counted(node.iter, line)
                if call is not None:
                    call.func, call.args[1:1] = _call(ENUMERATED, call, line).func, [_constant(line, call)]
                elif line in self._staged:
                    node.iter = _call(STAGED, node.iter, line)
            elif isinstance(node, COMPREHENSIONS) and trains([node], functions):
                for generator in node.generators:
                    generator.iter = _counted(generator.iter, f"{name}:{node.lineno}")
        return True

    def names(self) -> dict[str, Any]:
        """What a marked module needs."""
        return {
            STOPPED: self.stopped, GOES_ON_BEHIND: self._goes_on,
            COUNTED: self._note, COUNTED_SPLITS: self._note_splits, BEGINS: self.begins,
            CROSSES: self.stages.counters.crosses, STAGED: self._staged_turns, ENUMERATED: self._enumerated_turns,
        } | self.branches  # fmt: skip

    @contextlib.contextmanager
    def marking_modules(self) -> Iterator[None]:
        """Mark the program's own modules that are imported meanwhile, too, and those of packages that train.

        What is compiled of them is not kept.
        """

        def exec_module(loader: SourceFileLoader, module: types.ModuleType) -> None:
            path, tree = loader.get_filename(module.__name__), None
            if not is_library(path) or _brings_a_loop(loader, module.__name__, path):
                with contextlib.suppress(SyntaxError):  # the program's own error, which the import raises
                    tree = ast.parse(loader.get_data(path), path)
            if tree is None or not self.mark(tree, path):
                original(loader, module)
                return
            module.__dict__.update(self.names())
            exec(compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True), module.__dict__)

        original: Any = SourceFileLoader.exec_module
        with replaced(SourceFileLoader, "exec_module", exec_module):
            yield

    def _mark_in(
        self, node: ast.AST, name: str, is_nested: bool, functions: set[str], *, is_global: bool = True
    ) -> bool:
        is_marked = False
        for body in _bodies(node):
            for place, statement in enumerate(body):
                is_loop = isinstance(statement, LOOPS)
                inside = (is_nested or is_loop) and not isinstance(statement, (*FUNCTIONS, ast.ClassDef))
                is_outside = is_global and not isinstance(statement, FUNCTIONS)
                is_marked |= self._mark_in(statement, name, inside, functions, is_global=is_outside)
                does_train = is_loop and trains([statement], functions)
                # one around what a library trains; those of functions may be compiled, and Dynamo stops at a `try`
                if does_train or (is_loop and is_global and not is_nested):
                    line = f"{name}:{statement.lineno}"
                    asks = f"{GOES_ON_BEHIND}({STOP}, {line!r}, {is_nested}, {does_train})"
                    body[place] = within_try(statement, asks)
                    if does_train:
                        body[place].body.insert(0, _begins(statement, line))
                    is_marked = True
        return is_marked

    def _goes_on(self, stop: BaseException, line: str, is_nested: bool, does_train: bool) -> bool:
        """Whether the program goes on behind the loop of a line, out of which the exception came."""
        frame = sys._getframe(1)
        if is_nested or is_in_loop(frame):
            return does_train and self.goes_on_behind(line)
        if is_library(frame.f_code.co_filename):
            return False
        if self.trains_again(stop, frame):  # of a function it may be the result that the next training needs
            return frame.f_code.co_name != "<module>" and self.next_loop()
        return self.last_part(line)

    def _note(self, value: Any, line: str) -> Any:
        value = with_length(value)
        with contextlib.suppress(TypeError, NotImplementedError):  # of what has no length
            if not isinstance(value, KeysView | ItemsView | ValuesView):  # in some of whose turns nothing trains
                self.counts[line] = RangeTurns(len(value)) if isinstance(value, range) else len(value)
        if not isinstance(value, types.GeneratorType):
            return value
        count, are_batches = turns_of(value)
        if count is not None:
            self.counts[line] = count if are_batches else RangeTurns(count)
        return self._counting(value, line)

    def _staged_turns(self, value: Any, line: str) -> Any:
        """What a loop runs over, and how often, where its turns decide how it trains."""
        bar = value if hasattr(value, "iterable") and hasattr(value, "set_description") else None
        turns = known_turns(value if bar is None else bar.iterable)
        staged = turns and self.stages.of(turns, line, self._staged[line], sys._getframe(1))
        if staged is None or bar is None:
            return staged or value
        bar.iterable = staged
        return bar

    def _enumerated_turns(self, value: Any, line: str, start: int = 0) -> Any:
        turns = enumerated_turns(value, start)
        return (turns and self.stages.of(turns, line, self._staged[line], sys._getframe(1))) or enumerate(value, start)

    def _counting(self, values: Iterator[Any], line: str) -> Iterator[Any]:
        """The same values; how many there were is known when they are over."""
        count = 0
        for value in values:
            yield value
            count += 1
        self.counts[line] = count

    def _note_splits(self, owner: Any, line: str) -> Any:
        count = getattr(owner, "n_splits", None)
        if isinstance(count, int):
            self.counts[line] = count
        return owner


def _brings_a_loop(loader: SourceFileLoader, name: str, path: str) -> bool:
    """Whether a module is of a package that may train, whose trainer does not say how long it will (ultralytics)."""
    if not is_of_others(path) or name.partition(".")[0] in SAY_THEIR_LENGTH:
        return False
    return b".backward(" in loader.get_data(path)


def _does_train(node: ast.AST, functions: set[str]) -> bool:
    """Whether a loop or function of a file trains."""
    return trains([node], functions) if isinstance(node, LOOPS) else getattr(node, "name", "") in functions


def _counted(node: ast.expr, line: str) -> ast.expr:
    """The same expression, whose length is noted where it is what a call returns."""
    if not isinstance(node, ast.Call):
        return node
    if node.args and name_of(node.func) in WRAPPERS:
        node.args[0] = _counted(node.args[0], line)
        return node
    if isinstance(node.func, ast.Attribute) and node.func.attr == "split":  # of one of scikit-learn's splitters
        node.func.value = _call(COUNTED_SPLITS, node.func.value, line)
    return _call(COUNTED, node, line)


def _begins(loop: ast.stmt, line: str) -> ast.stmt:
    """A statement that tells that a loop begins."""
    statement = ast.parse(f"{BEGINS}({line!r})").body[0]
    for node in ast.walk(statement):
        ast.copy_location(node, loop)
    return statement


def _bodies(node: ast.AST) -> Iterator[list[Any]]:
    """The lists of statements in a node."""
    for name in BODIES:
        part = getattr(node, name, None)
        if isinstance(part, list):  # a lambda's body is an expression
            yield from (handler.body for handler in part) if name == "handlers" else (part,)
    yield from (case.body for case in getattr(node, "cases", []))


def _constant(value: str, place: ast.expr) -> ast.Constant:
    return ast.copy_location(ast.Constant(value), place)


def _call(name: str, value: ast.expr, line: str) -> ast.Call:
    call = ast.Call(ast.Name(name, ast.Load()), [value, ast.Constant(line)], [])
    for node in (call, call.func, call.args[1]):
        ast.copy_location(node, value)
    return call
