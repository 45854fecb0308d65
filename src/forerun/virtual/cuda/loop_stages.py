"""Turns of a loop from which on a program does something else: a backbone that thaws at epoch 5, pictures that grow.

A program is stopped once its steps repeat, long before such a turn. What the conditions in a `for` loop say of what a
turn is given, over a range or a list or with `enumerate` (`staged_turns.py`), is asked for every turn when the loop
begins, and so are whole numbers that follow from it, such as a length. Where one has another value, a stage begins:
once enough steps of a stage were seen, the loop goes on with the first turn of the next one, whose steps are seen like
those of another training loop (`later_loops.py`). Stages whose steps do the same work are one. Of many the last and
some between are seen.

Not covered: functions that are given the number, and what changes a little with every turn, of which the first, the
middle and the last turns are seen. Counters that the program raises itself are another matter (`own_counters.py`).
"""

import ast
import sys
import time
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from forerun.virtual.cuda.enough_steps import ProgramStopped
from forerun.virtual.cuda.later_loops import FUNCTIONS, LOOPS, called_in, loops_of
from forerun.virtual.cuda.lines import is_library, path_name
from forerun.virtual.cuda.loop_sizes import COUNTED_CALLS, looped_over, name_of, unwrapped, value_of
from forerun.virtual.cuda.own_counters import OwnCounters
from forerun.virtual.cuda.records import BY_COUNTER, Stage, TrainingLoop
from forerun.virtual.cuda.staged_turns import Turns, names_of

MOST_STAGES = 4
"""Of one loop that are seen."""
MOST_TURNS = 2_000
"""Of a loop whose conditions are asked for each turn; of longer ones around the numbers that they compare with."""
NO_SIZES = (ast.Mod, ast.Compare, ast.BoolOp, ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Lambda, ast.Await)
"""What a size has no part of."""
MOST_IDLE_SECONDS = 6.0
"""Of the processor that turns without a step may take here, such as those that fill a memory."""
DRAWS = ("seed", "fold", "run", "trial", "repeat")
"""Parts of names of what a program begins anew with, and does the same."""
HARMLESS = (
    "print", "log", "info", "debug", "write", "update", "append", "save", "eval", "valid", "test", "step", "add_",
    "plot", "sample", "flush", "set_description", "set_postfix", "synchronize", "time", "dump", "format", "makedirs",
    "item", "cpu", "detach", "numpy", "mean", "clone", "state_dict", "range", "len", "str", "round", "isinstance",
)  # fmt: skip
"""Beginnings of names of functions that change nothing about how a program trains."""


@dataclass(frozen=True)
class CountedLoop:
    """A loop whose turns are known before it begins, and what in it changes how it trains."""

    target: ast.expr
    """What each turn gives a value."""
    tests: tuple[ast.expr, ...] = ()
    """Conditions."""
    sizes: tuple[ast.expr, ...] = ()
    """What is given a name; whole numbers are lengths, sizes and counts, others are rates of learning and the like."""

    def boundaries(self, turns: Turns, names: Mapping[str, Any]) -> list[int]:
        """Numbers of the turns, but for the first, with which a condition or a size has another value."""
        changes: set[int] = set()
        names = {name: value for name, value in names.items() if name not in names_of(self.target)}
        for test in self.tests:
            numbers = self._near(turns, test, names) if len(turns) > MOST_TURNS else range(len(turns))
            values = self._values(test, turns, numbers, names)
            if any(isinstance(value, bool) for value in values):
                changes |= _changes([bool(value) for value in values], numbers)
        counters = turns.counters(self.target)
        for size in (each for each in self.sizes if not (isinstance(each, ast.Name) and each.id in counters)):
            numbers = range(0, len(turns), -(-len(turns) // MOST_TURNS) or 1)
            values = self._values(size, turns, numbers, names)
            if values and all(type(value) is int for value in values):
                changes |= _growth(values, numbers)
        return _some(sorted(changes - {0}))

    def _values(self, node: ast.expr, turns: Turns, numbers: Sequence[int], names: Mapping[str, Any]) -> list[Any]:
        """What an expression is in some turns; nothing where to ask for it would be work of the device."""
        used = [names.get(part.id) for part in ast.walk(node) if isinstance(part, ast.Name)]
        if any(isinstance(each, torch.Tensor) for each in used):
            return []
        names = {**names, **COUNTED_CALLS}
        owner, key = _field(node)
        if key:
            owners = [turns.names_in(number, self.target).get(owner) for number in numbers]
            return [(each if isinstance(each, dict) else getattr(each, "__dict__", {})).get(key) for each in owners]
        return [value_of(node, {**names, **turns.names_in(number, self.target)}) for number in numbers]

    def _near(self, turns: Turns, test: ast.expr, names: Mapping[str, Any]) -> list[int]:
        """Turns around the numbers that a condition compares with."""
        near: set[int] = set()
        for part in (each for node in ast.walk(test) if isinstance(node, ast.Compare) for each in _sides(node)):
            limit = looped_over(part, names)
            for value in limit if isinstance(limit, list | tuple | set) else [limit]:
                if isinstance(value, int | float):
                    number = int((value - turns.numbers.start) // turns.numbers.step)
                    near.update(range(max(0, number - 2), min(len(turns), number + 4)))
        return sorted(near)


@dataclass
class LoopStages:
    """The stages of the one loop of a program that has some."""

    _loop: Callable[[], TrainingLoop | None] = lambda: None
    """The training loop that is running."""
    _is_enough: Callable[[], bool] = lambda: False
    """Whether they repeat, and the loop that makes them was ended."""
    _next_stage: Callable[[Stage], None] = lambda stage: None
    """Begins with the next one, behind a stage."""
    _end_rest: Callable[[], None] = lambda: None
    """Ends what follows the loop that was ended."""
    counters: OwnCounters = field(default_factory=OwnCounters)
    """Those that the program raises itself."""
    _line: str = ""
    _boundaries: list[int] = field(default_factory=list)
    """Numbers of the turns with which stages begin that are still to come."""
    _is_due: bool = False
    _passed: float = 0.0
    """Steps until the last limit of a counter."""
    _began: float = 0.0
    """Seconds of the processor when the loop began."""

    def follow(
        self, loop: Callable[[], TrainingLoop | None], is_enough: Callable[[], bool],
        next_stage: Callable[[Stage], None], end_rest: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Ask these what was seen, and tell of the end of a stage."""
        self._loop, self._is_enough, self._next_stage = loop, is_enough, next_stage
        self._end_rest = end_rest

    def end(self) -> None:
        """The last turn is over: a loop of which enough was seen ends as any other, so that what follows it is known.

        Raises:
            ProgramStopped: enough was seen.
        """
        if self._is_enough():
            self._end_rest()
            raise ProgramStopped

    def of(self, turns: Turns, line: str, loop: CountedLoop, frame: types.FrameType) -> "StagedTurns | None":
        """What the loop at a line runs over in place of its turns; None where it has no stages."""
        if self._line:
            return None
        boundaries = loop.boundaries(turns, frame.f_globals | frame.f_locals)
        if not boundaries:
            return None
        self._line, self._boundaries, self._began = line, boundaries, time.process_time()
        return StagedTurns(turns, self)

    def goes_on(self) -> bool:
        """Enough steps were seen: whether the loop that makes them goes on, with the first turn of the next stage.

        Where they are made by a loop within the staged one, that is ended first.
        """
        self._is_due = bool(self._boundaries) and innermost_loop(sys._getframe(1)) == self._line
        return self._is_due or (not self._boundaries and self._goes_past())

    def _goes_past(self) -> bool:
        """Whether the loop goes on as behind a limit of a counter that the program raises."""
        loop = self._loop()
        steps = 0 if loop is None or loop.length is None else loop.length.steps
        stage = self.counters.next_stage(steps) if steps else None
        if stage is None:
            return False
        at, until = stage
        self._next_stage(Stage((at - self._passed) / steps, BY_COUNTER, until))
        self._passed = at
        return True

    @property
    def _has_steps(self) -> bool:
        """Whether steps of the stage were seen."""
        loop = self._loop()
        return loop is not None and bool(loop.spans)

    def next_turn(self, number: int, began: int, count: int) -> tuple[int, int]:
        """The next turn, or where enough was seen the first of the next stage, and that with which its stage began."""
        if not self._boundaries:
            return number, began
        later = self._boundaries[0]
        is_idle = not self._has_steps and time.process_time() - self._began > MOST_IDLE_SECONDS
        if later > number and not (self._is_due or is_idle or self._is_enough()):
            return number, began
        self._is_due, self._began = False, time.process_time()
        until = f"turn {later + 1} of the loop at {self._line}"
        self._next_stage(Stage((later - began) / count, self._line, until))
        self._boundaries.pop(0)
        return later, later


class StagedTurns:
    """The turns of a loop, of which those between its stages are left out once enough of them were made."""

    def __init__(self, turns: Turns, stages: LoopStages) -> None:
        self._turns, self._stages = turns, stages

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[Any]:
        number, began, values = 0, 0, self._turns.values()
        while number < len(self._turns):
            try:
                yield values(number)
            except StopIteration:
                break
            number, began = self._stages.next_turn(number + 1, began, len(self._turns))
        self._stages.end()


def staged_loops(tree: ast.AST, name: str, does_train: Callable[[ast.AST], bool]) -> dict[str, CountedLoop]:
    """By line of a file, the loops that train and whose turns are given what decides how."""
    loops = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.For) or not does_train(node) or _is_in_step(node, tree, does_train):
            continue
        if names := names_of(node.target):
            sizes = [*_sizes(node, names), *_given_sizes(node)]
            loop = CountedLoop(node.target, tuple(_tests(node, names, does_train)), tuple(sizes))
            if loop.tests or loop.sizes:
                loops[f"{name}:{node.lineno}"] = loop
    return loops


def _is_in_step(loop: ast.For, tree: ast.AST, does_train: Callable[[ast.AST], bool]) -> bool:
    """Whether a loop makes the backward passes of one step, which a loop around it ends."""
    inside = set(ast.walk(loop))
    if any(name_of(each.func) != "backward" and does_train(each) for each in inside if isinstance(each, ast.Call)):
        return False
    loops = [set(ast.walk(each)) for each in ast.walk(tree) if isinstance(each, LOOPS) and each is not loop]
    behind = set().union(*(parts for parts in loops if loop in parts)) - inside
    return any(isinstance(each, ast.Call) and name_of(each.func) == "step" for each in behind)


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


def _tests(loop: ast.For, names: Collection[str], does_train: Callable[[ast.AST], bool]) -> Iterator[ast.expr]:
    """Conditions of what a loop counts with, without remainders, which decide more than what is told or saved."""
    branches = (node for node in _within(loop) if isinstance(node, ast.If) and _leaves(node.body))
    leaving = {ast.unparse(part) for node in branches for part in ast.walk(node.test) if isinstance(part, ast.expr)}
    for node in _within(loop):
        test = None
        if isinstance(node, ast.IfExp) or (isinstance(node, ast.If) and decides(node, does_train)):
            test = node.test
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Compare | ast.BoolOp):
            test = None if ast.unparse(node.targets[0]) in leaving else node.value
        if test is not None and _counts(test, names):
            yield test


def decides(branch: ast.If, does_train: Callable[[ast.AST], bool]) -> bool:
    """Whether a branch does more than tell, save or evaluate something, and does not leave its loop.

    Behind a loop that is left nothing would keep the program from publishing what it has not trained.
    """
    statements = [*branch.body, *branch.orelse]
    return not _leaves(statements) and (_changes_training(statements) or any(map(does_train, statements)))


def _leaves(statements: Collection[ast.stmt]) -> bool:
    """Whether statements leave the loop or function that they are in."""
    for each in statements:
        inside = [] if isinstance(each, (*FUNCTIONS, ast.ClassDef)) else list(ast.iter_child_nodes(each))
        if isinstance(each, ast.Break | ast.Return | ast.Raise) or _leaves(
            [part for part in inside if isinstance(part, ast.stmt)]
        ):
            return True
    return False


def _given_sizes(loop: ast.For) -> Iterator[ast.expr]:
    """What each turn of a loop over no range is given, unless it says which random numbers are drawn."""
    values = unwrapped(loop.iter)
    if isinstance(values, ast.Call) and name_of(values.func) == "range":
        return
    for part in ast.walk(loop.target):
        if isinstance(part, ast.Name) and not any(word in part.id.lower() for word in DRAWS):
            yield ast.copy_location(ast.Name(part.id, ast.Load()), part)


def _sizes(loop: ast.For, names: Collection[str]) -> Iterator[ast.expr]:
    """What follows from what a loop counts with and is given a name in it, without remainders."""
    for node in _within(loop):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            parts = list(ast.walk(node.value))
            calls = [part.func for part in parts if isinstance(part, ast.Call)]
            is_known = all(isinstance(call, ast.Name) and call.id in COUNTED_CALLS for call in calls)
            has_name = any(isinstance(part, ast.Name) and part.id in names for part in parts)
            if has_name and is_known and not any(isinstance(part, NO_SIZES) for part in parts):
                yield node.value
        elif isinstance(node, ast.Attribute | ast.Subscript) and _field(node)[0] in names:
            yield node


def _field(node: ast.AST) -> tuple[str, str]:
    """What a name is asked for, `phase["steps"]` or `phase.steps`; empty for anything else."""
    owner = getattr(node, "value", None)
    if isinstance(node, ast.Attribute) and isinstance(owner, ast.Name):
        return owner.id, node.attr
    key = node.slice.value if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) else None
    return (owner.id, key) if isinstance(owner, ast.Name) and isinstance(key, str) else ("", "")


def _within(node: ast.AST) -> Iterator[Any]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            yield child
            yield from _within(child)


def _counts(test: ast.expr, names: Collection[str]) -> bool:
    """Whether a condition compares what is counted with something, and is no period."""
    parts = list(ast.walk(test))
    has_name = any(isinstance(part, ast.Name) and part.id in names for part in parts)
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


def _growth(values: Sequence[int], numbers: Sequence[int]) -> set[int]:
    """Numbers at which a size changes; of one that does in nearly every turn, the middle and the last."""
    changes = {numbers[place] for place in range(1, len(values)) if values[place] != values[place - 1]}
    if len(changes) > len(numbers) // 2:
        return {numbers[len(numbers) // 2], numbers[-1]}
    return changes


def _some(numbers: list[int]) -> list[int]:
    """At most as many as are seen, the last of them included."""
    step = -(-len(numbers) // MOST_STAGES) or 1
    return numbers[::-1][::step][::-1]


def _changes(answers: Sequence[bool], numbers: Sequence[int]) -> set[int]:
    """Numbers at which an answer changes: to yes, and back where it was yes for more than one turn."""
    changes, since = set(), 0
    for place in range(1, len(answers)):
        if answers[place] != answers[place - 1]:
            if answers[place] or numbers[place] - numbers[since] > 1:
                changes.add(numbers[place])
            since = place
    return changes
