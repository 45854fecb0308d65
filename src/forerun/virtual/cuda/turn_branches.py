"""What a program does in some turns of its loops only: `if step % 1000 == 0: evaluate()`.

A program is stopped after few steps, and none of those may be one of them. Remainders that decide are noted with both
sides, so that what is counted (steps, batches, epochs) need not be known: how fast it rises shows. A branch that was
not taken is taken once, in one more turn of the loop or in what follows its last one, and counts as often as the
period says.
"""

import ast
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from forerun.virtual.cuda.branch_conditions import (
    ask_first,
    conditions_beside,
    flags_of,
    mark_best,
    remainders,
    residue_of,
    turn_round,
    write_out_calls,
)
from forerun.virtual.cuda.branch_rules import BranchRule, EventSpan, is_off, steps_between
from forerun.virtual.cuda.hook_branches import branches_of_hooks
from forerun.virtual.cuda.later_loops import FUNCTIONS, LOOPS, called_in, trains, trains_by
from forerun.virtual.cuda.limit_branches import remainder_of_limit
from forerun.virtual.cuda.loaders import WatchedLoader

REMAINDER, TAKES, IS_OVER = "__forerun_remainder__", "__forerun_takes__", "__forerun_is_over__"
"""Names in the script's module: what computes a remainder, decides whether a branch is taken, and ends one."""
CYCLE, RARELY = "__forerun_cycle__", "__forerun_rarely__"
"""What computes the remainder of a branch that trains, such as a generator's update after some of its critic's, and
decides whether one that is due seldom is taken."""
OF_LOOP = "loop"
"""Said of a counter that is what the loop around its branch runs over."""
OF_UPDATE = "update"
"""Said of a branch that has no backward pass."""
HOOK = "hook"
"""In place of the line of the loop around a branch: it is of a function that does not train."""
LEAVING = (ast.Break, ast.Continue, ast.Return, ast.Raise)
YIELDING = (ast.Yield, ast.YieldFrom, ast.Await)
MOST_CYCLE = 10
"""Steps from one turn of a branch that trains to the next which are seen whole."""
UPDATES = ("step", "zero_grad", "update")
"""Methods by which a branch belongs to the step: an update after several batches, a moving average."""
SCHEDULERS = ("sch", "lr", "plateau", "decay", "warmup")
"""Parts of names of schedulers."""


@dataclass(frozen=True)
class BranchMoment:
    """How far a program has come: events of the trace, optimizer steps, bytes of checkpoints, batches made."""

    events: int
    steps: int
    saved_bytes: int
    fetched: Sequence[WatchedLoader] = ()


@dataclass(frozen=True)
class BranchRun:
    """The events of the trace from `begin` to `end`: one run of what the branch at `line` does."""

    line: str
    loop: str
    """File and line of the innermost loop around it that trains; empty where that is in another function."""
    begin: int
    end: int
    saved_bytes: int


@dataclass
class TurnBranches:
    """The branches of one training loop, as they are reached."""

    runs: list[BranchRun] = field(default_factory=list)
    counts: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    """Of the remainder that decides each branch, when it was computed: counter, period and optimizer steps so far."""
    cycles: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    """The same of branches that train."""
    updates: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    """The same of branches that update something without a backward pass."""
    _of_hooks: set[str] = field(default_factory=set)
    """Branches of functions that do not train and that a loop may call after each step."""
    rules: defaultdict[str, BranchRule] = field(default_factory=lambda: defaultdict(BranchRule))
    """By its line what decides each branch."""
    of_loops: set[str] = field(default_factory=set)
    """Branches that are decided by what the loop around them runs over."""
    _once: set[str] = field(default_factory=set)
    """Branches that were taken because nothing else took them."""
    _open: tuple[str, str, BranchMoment] | None = None
    _left: tuple[str, BaseException | None] = ("", None)
    """The line of the branch that ended last, and the exception that ended it."""

    def remainder(
        self, line: str, counter: Any, period: Any, steps: int, residue: Any = 0, *,
        is_cycle: bool = False, is_update: bool = False,
    ) -> Any:  # fmt: skip
        """What `counter % period` is; the branch at `line` depends on it, which trains where it `is_cycle`.

        The branch is due where that is the `residue`. Where it `is_update` it updates something without training.
        """
        if type(counter) is type(period) is int and period > is_cycle:
            own = self.cycles if is_cycle else self.updates if is_update else self.counts
            own.setdefault(line, []).append((counter, period, steps))
            if own is not self.counts and line in self.counts:
                self.counts[line].append((counter, period, steps))
            self.rules[line].residue = residue if isinstance(residue, int) else 0
        return counter % period

    @property
    def steps_of_cycles(self) -> dict[str, int]:
        """By line of a branch that trains, optimizer steps from one of its turns to the next, where they are several.

        Of a branch that makes the steps itself, after several batches, it is one.
        """
        return {line: steps for line, readings in self.cycles.items() if (steps := steps_between(readings)) > 1}

    def turns_of_a_step(self, path: str, first: int, last: int) -> int:
        """Turns of a loop, from the `first` line of a file to its `last`, that one optimizer step takes.

        By a branch in it that makes all of the steps, every so many turns; 1 where there is none.
        """
        for line, readings in self.cycles.items():
            name, _, number = line.rpartition(":")
            (start, period, before), (end, _, now) = readings[0], readings[-1]
            rise = (end - start) / max(1, len(readings) - 1)
            is_inside = name == path and first <= int(number) <= last and rise > 0
            if is_inside and (now - before) * period <= end - start:  # steps come no more often than it is due
                return max(1, round(period / rise))
        return 1

    @property
    def cycle_steps(self) -> int:
        """Steps until all branches that train come together again, or the rarest one does, as far as `MOST_CYCLE` sees.

        1 where there are none.
        """
        cycles = [steps for steps in self.steps_of_cycles.values() if steps <= MOST_CYCLE]
        together = math.lcm(*cycles)
        return together if together <= MOST_CYCLE else max(cycles)

    def steps_to_see(self, most: int) -> int | None:
        """Steps after which branches that train were seen; `most` while it is open how often, None without any."""
        if self.cycle_steps > 1:
            return self.cycle_steps + 2  # the first of its turns prepares, as the first step does
        is_begun = any(each[0][2] > 0 and each[-1][0] == each[0][0] for each in self.cycles.values())
        return most if is_begun else None

    @property
    def steps_by_counter(self) -> float:
        """Optimizer steps while the counter of a branch that trains rises by one; 1 where there is none."""
        shares = [
            steps / self.cycles[line][0][1] for line, steps in self.steps_of_cycles.items() if steps <= MOST_CYCLE
        ]
        return max(shares, default=1.0)

    @property
    def open_line(self) -> str:
        """Line of the branch that is being taken, or else of that which was last; empty where there was none."""
        return self._open[0] if self._open is not None else "".join(run.line for run in self.runs[-1:])

    @property
    def is_open(self) -> bool:
        """Whether a branch is being taken."""
        return self._open is not None

    @property
    def trains_seldom(self) -> bool:
        """Whether that is one of those that train and are due seldom: its updates end no step."""
        return self._open is not None and self.is_rare(self._open[0])

    def left_by(self, failure: BaseException) -> str:
        """Line of the branch that an exception left; empty for none."""
        return self._left[0] if self._left[1] is failure else ""

    def waits(self) -> bool:
        """Whether a branch is left that has not been taken for its own sake."""
        for line, readings in (self.cycles | self.updates).items():
            if steps_between(readings) > MOST_CYCLE:  # too seldom to be seen with others
                self.counts.setdefault(line, [*readings])
        return any(line not in self._once and self.is_of_turns(line) for line in self.counts)

    def is_rare(self, line: str) -> bool:
        """Whether a branch trains or updates something, and too seldom to be seen with others."""
        return line in self.counts and (line in self.cycles or line in self.updates)

    def is_of_turns(self, line: str) -> bool:
        """Whether turns of a training loop decide the branch at `line`: a hook's is reached once after each step."""
        if line not in self._of_hooks:
            return True
        readings = self.counts.get(line, [])
        rises = (now[0] > before[0] and now[2] - before[2] in (0, 1) for before, now in pairwise(readings))
        return len({steps for *_, steps in readings}) > 1 and all(rises)

    def first_like_later(self, steps: Sequence[EventSpan]) -> int:
        """Number of the first step behind the one that prepares that has no branch which later steps lack.

        A counter that begins at 0 has its branches due at once.
        """
        first = min(1, len(steps) - 1)
        while first < len(steps) - 1:
            begin, end = steps[first].begin, steps[first].end
            here = {run.line for run in self.runs if begin <= run.begin < end}
            if here <= {run.line for run in self.runs if end <= run.begin < steps[-1].end}:
                break
            first += 1
        return first

    def takes(
        self, is_due: Any, line: str, loop: str, now: BranchMoment, is_on: Callable[[], Any] = lambda: True,
        is_past: Callable[[int], Any] | None = None, *, is_extra: bool,
    ) -> bool:  # fmt: skip
        """Whether a branch is taken: where it is due, and once where `is_extra`, in a turn that is no step.

        That is where the program's options, which do not change, allow it: `is_on`. `is_past` is what its condition
        says of the counter beside the remainder.
        """
        is_due = bool(is_due)
        if is_past is not None:
            self.rules[line].is_past = is_past
        if loop == HOOK:
            self._of_hooks.add(line)
            is_extra = is_extra and self.is_of_turns(line)
        if self._open is not None:  # within another one, of which it is a part
            return is_due
        if not is_due:
            if line in self.counts and is_off(is_on):
                for readings in (self.counts, self.cycles, self.updates):
                    readings.pop(line, None)
            elif line in self.counts and is_past is None and self.rules[line].is_of_period(self.counts[line][-1]):
                self.rules[line].refused.add(self.counts[line][-1][0])
            if not is_extra or line not in self.counts or line in self._once:
                return False
        if is_extra:
            self._once.add(line)
        self._open = line, loop, now
        return True

    def is_over(self, line: str, now: BranchMoment) -> int:
        """The branch at `line` has come to its end, or was left; returns how many batches were made in it."""
        if self._open is None or self._open[0] != line:
            return 0
        self._left = line, sys.exception()
        (_, loop, start), self._open = self._open, None
        self.runs.append(BranchRun(line, loop, start.events, now.events, now.saved_bytes - start.saved_bytes))
        return len(now.fetched[len(start.fetched) :])

    def times(self, run: BranchRun, steps: int, turns: int | None, passes: int = 1) -> int:
        """How often a branch is taken in `steps` optimizer steps and `turns` of its loop, by how its counter rises.

        That loop begins anew in each of its `passes`, and with it what it runs over.
        """
        readings, rule = self.counts.get(run.line, []), self.rules[run.line]
        if not readings or not self.is_of_turns(run.line):
            return 0
        is_of_loop = turns is not None and run.line in self.of_loops
        if turns is not None and is_of_loop and turns < steps and len(readings) > 1:
            return passes * rule.count(readings, turns / passes * abs(readings[-1][0] - readings[-2][0]))
        (first, _, before), (last, _, now) = _while_training(readings)
        if now > before:
            passes = passes if is_of_loop else 1
            return passes * rule.count(readings, steps / passes * (last - first) / (now - before))
        return 0 if turns is None else rule.count(readings, turns)

    def recurs(self, run: BranchRun, steps: int) -> bool:
        """Whether a branch is due again and again in so many steps."""
        (first, period, before), (last, _, now) = _while_training(self.counts.get(run.line, []) or [(0, 0, 0)])
        rise = (last - first) / (now - before) if now > before else 1
        return period > 0 and self.is_of_turns(run.line) and steps * rise >= period


def _while_training(readings: list[tuple[int, int, int]]) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Two readings of a counter, by which it rises with the steps: those before the first may have warmed up."""
    begins = [each for each, before in zip(readings[1:], readings, strict=False) if each[2] > before[2]]
    return (begins[0], begins[-1]) if len(begins) > 1 else (readings[0], readings[-1])


def mark_branches(tree: ast.Module, name: str, functions: set[str], is_loop: Callable[[ast.AST], bool]) -> bool:
    """Make the branches of loops that train, in the file `name`, such that they are seen and can be taken.

    `functions` are the file's that train. Returns whether there are any.
    """
    write_out_calls(tree)
    turn_round(tree)
    is_marked, flags = mark_best(tree), flags_of(tree)
    hooks = [(node, None, HOOK) for node in branches_of_hooks(tree, functions)]
    loops = [(node, loop, loop and f"{name}:{loop.lineno}") for node, loop in _inside(tree, None, functions, is_loop)]
    for node, loop, where in [*loops, *hooks]:
        place: ast.AST = node
        remainder = next(remainders(node.test), None)
        if remainder is None and node in flags:
            place = flags[node]
            remainder = next(remainders(flags[node].value), None)
        if remainder is None and not _belongs_to_step(node, functions):
            remainder = remainder_of_limit(node, loop)
        if remainder is None:
            continue
        line, of_step = f"{name}:{node.lineno}", _belongs_to_step(node, functions)
        does_train, leaves = trains(node.body, functions), _leaves(node.body)
        if of_step and not does_train and (leaves or not _updates(node, functions)):
            continue
        condition = flags[node].value if place is not node else node.test
        residue, beside = residue_of(condition, remainder), conditions_beside(condition, remainder, loop)
        if not of_step:
            ask_first(condition, remainder)
        kinds = [OF_LOOP] * _is_of_loop(remainder.left, loop) + [OF_UPDATE] * (of_step and not does_train)
        asks = _call(
            CYCLE if of_step else REMAINDER, remainder, [remainder.left, remainder.right, residue], line, *kinds
        )
        _replace(place, remainder, asks)
        is_marked = True
        if of_step and leaves:
            continue
        node.test = _call(RARELY if of_step else TAKES, node.test, [node.test], line, where or "")
        node.test.args += beside
        over = ast.copy_location(ast.Expr(_call(IS_OVER, node.test, [], line)), node)
        node.body = [ast.copy_location(ast.Try(node.body, [], [], [over]), node.body[0])]
    return is_marked


def _is_of_loop(counter: ast.expr, loop: ast.AST | None) -> bool:
    """Whether a counter is what a `for` loop runs over, or follows from it alone."""
    names = {part.id for part in ast.walk(counter) if isinstance(part, ast.Name)}
    if not isinstance(loop, ast.For) or any(isinstance(part, ast.Attribute | ast.Call) for part in ast.walk(counter)):
        return False
    return bool(names) and names <= {part.id for part in ast.walk(loop.target) if isinstance(part, ast.Name)}


def _inside(
    node: ast.AST, loop: ast.AST | None, functions: set[str], is_loop: Callable[[ast.AST], bool], is_in: bool = False
) -> Iterator[tuple[ast.If, Any]]:
    """Every `if` in loops and functions that train, with the innermost such loop of its function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _inside(child, None, functions, is_loop, child.name in functions)
        elif is_loop(child):
            yield from _inside(child, child, functions, is_loop, True)
        elif not isinstance(child, ast.Lambda):
            if is_in and isinstance(child, ast.If):
                yield child, loop
            yield from _inside(child, loop, functions, is_loop, is_in)


def _belongs_to_step(node: ast.If, functions: set[str]) -> bool:
    """Whether a branch trains or leaves its loop: it is no addition to a step."""
    has_calls = any(not _is_schedule(call) for call in called_in(node.body))
    return not has_calls or _updates(node, functions) or _leaves(node.body)


def _updates(node: ast.If, functions: set[str]) -> bool:
    """Whether a branch calls what trains or updates something."""
    calls = [call for call in called_in(node.body) if not _is_schedule(call)]
    return any(call.rpartition(".")[2] in UPDATES or trains_by(call, functions) for call in calls)


def _leaves(body: list[ast.stmt]) -> bool:
    """Whether statements leave their loop whatever happens: under a condition, patience that is over, they may."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, LEAVING):
            return True
        if not isinstance(node, (ast.If, *LOOPS, *FUNCTIONS)):
            waiting.extend(ast.iter_child_nodes(node))
    return any(isinstance(part, YIELDING) for each in body for part in ast.walk(each))


def _is_schedule(call: str) -> bool:
    """Whether a call, as it is written, is a scheduler's, which may be stepped behind an evaluation."""
    owner, _, method = call.rpartition(".")
    return method == "step" and any(part in owner.lower() for part in SCHEDULERS)


def _replace(root: ast.AST, old: ast.expr, new: ast.expr) -> None:
    for part in ast.walk(root):
        for name, value in ast.iter_fields(part):
            if value is old:
                setattr(part, name, new)
            elif isinstance(value, list) and old in value:
                value[value.index(old)] = new


def _call(name: str, place: ast.expr, values: list[ast.expr], *lines: str) -> ast.Call:
    call = ast.Call(ast.Name(name, ast.Load()), [*values, *(ast.Constant(line) for line in lines)], [])
    for node in (call, call.func, *call.args[len(values) :]):
        ast.copy_location(node, place)
    return call
