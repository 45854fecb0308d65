"""How long a program would have gone on: its trainer says so, or the `for` loops around its optimizer step do."""

import ast
import inspect
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from forerun.virtual.cuda.clock_ends import ClockEnd, clock_end_of
from forerun.virtual.cuda.lines import WithinCall, is_library, is_of_others, path_name
from forerun.virtual.cuda.loop_counters import LoopCounters, LoopEnd, can_be_left, sets_anew
from forerun.virtual.cuda.loop_sizes import count_of, looped_over, steps_with_the_rest, total_of, turns_through
from forerun.virtual.cuda.trainer_lengths import AT_MOST, ProgramLength, length_of_trainer

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
COMPREHENSION_FRAMES = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
"""Frames of their own whose loops stand in the function around them (before Python 3.12 all of them)."""
DOORS = (
    "/forerun/virtual/cuda/run.py",
    "/forerun/virtual/cuda/own_processes.py",
    "/forerun/forecasting/",
    "/forerun/hf/",
)
"""Where a program or a rank of it is started from here: loops above repeat no steps of it."""
SEARCHES = {"optuna", "hyperopt", "skopt", "nevergrad", "flaml", "ray", "wandb", "sklearn"}
"""Libraries that call what trains as often as they think right."""
CALLED_ONCE = ("sklearn.pipeline", "sklearn.base", "sklearn.compose", "sklearn.utils", "ray.train")
"""Modules of theirs that do it once."""


def find_length(
    batches_per_step: int,
    backward_lines: Sequence[str] = (),
    update_line: str = "",
    turns: Mapping[str, int] | None = None,
    counters: LoopCounters | None = None,
    loaders: Mapping[str, int] | None = None,
    turns_of_a_step: Callable[[str, int, int], int] | None = None,
    *,
    batches_by_pass: Mapping[int, int] | None = None,
    has_turned: bool = False,
    has_repeated: bool = False,
) -> ProgramLength | None:
    """Ask the trainer whose loop is running, else the program's loops; None where neither knows.

    `batches_per_step` is how many batches the last optimizer step took from a data loader, and `batches_by_pass` has
    the same by the batches of a pass of the loader, where there are several. `backward_lines` is where it made its
    backward passes, and `turns` has how often loops run whose line makes what they loop over. Of a step that is over
    before it is known, `update_line` is where it ended: loops of the same file that do not hold it are no loops over
    steps. `counters` are those that end loops, which are known from the second step on; a loop around the one that
    trains `has_turned` before this step. `loaders` has how many batches a pass of each loader of the last step has, and
    `turns_of_a_step` says how many turns of a loop, by its file and lines, a branch in it lets pass from one step to
    the next. Where the step `has_repeated` and its loops say nothing, those count that were running at the last one.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        length = length_of_trainer(locals_of(frame), frame.f_code.co_name)
        if length is not None:
            return _in_loops_above(length, frame.f_back, turns or {})
        frame = frame.f_back
    here, counters, passes = sys._getframe(1), counters or LoopCounters(), set((loaders or {}).values())
    above = list(_loops_above(here, turns or {}, counters, has_turned=has_turned))
    if turns_of_a_step is not None and not batches_per_step:
        above = [_by_branch(each, turns_of_a_step) for each in above]
    length = _of_loops(iter(above), batches_per_step, backward_lines, update_line, passes, batches_by_pass or {})
    if length is None and has_repeated:
        lasting = (each for each in above if each.is_lasting)
        length = _of_loops(lasting, batches_per_step, backward_lines, update_line, passes, batches_by_pass or {})
    _mark(here)
    return length


def _mark(frame: Any) -> None:
    """Let the frames that run now be known at the next step: `f_trace_lines` is of one frame and says nothing else
    while no debugger is there, and no reference keeps a frame with its tensors."""
    while frame is not None:
        frame.f_trace_lines = False
        frame = frame.f_back


def locals_of(frame: Any) -> dict[str, Any]:
    """A function's variables, which it may delete or give other values.

    Before Python 3.13 (PEP 667) what is asked for stays in the frame: tensors of this step would outlive the next.
    """
    table = frame.f_locals
    names = dict(table)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # else it is the module's own
        table.clear()
    return names


class RangeTurns(int):
    """Turns of a loop over a range that was counted when it began: its numbers are no batches."""


@dataclass(frozen=True)
class _Turns:
    """How often one loop of the program runs."""

    loop: Any
    """Its node in the file at `path`; None of a search, which calls what trains."""
    path: str
    line: str
    count: int | None
    is_over_batches: bool
    end: LoopEnd | None = None
    """What a counter says of the steps of all its turns."""
    frame: int = 0
    """Identity of the frame that it runs in."""
    is_lasting: bool = True
    """Whether it was running at the step before: a loop that each step begins anew is a part of it, as the schedule of
    a pipeline is."""
    can_be_left: bool = False
    """Before it has run so often."""
    clock: ClockEnd | None = None
    """What a clock says of it."""


def _loops_above(
    frame: Any, turns: Mapping[str, int], counters: LoopCounters, *, has_own: bool = False, has_turned: bool = False
) -> Iterator[_Turns]:
    """The loops of the program's own code around the line that is running, innermost first, and of a search.

    Before them those of a package that trains, unless the program `has_own` ones further in.
    """
    is_comprehended = False
    while frame is not None and not any(door in frame.f_code.co_filename for door in DOORS):
        path, name = frame.f_code.co_filename, path_name(frame.f_code.co_filename)
        is_own = not is_library(path)
        if is_own and frame.f_code.co_name in COMPREHENSION_FRAMES:
            is_comprehended = True
        elif is_own:
            loops = _loops_around(path, frame.f_lineno)
            if not is_comprehended and sys.version_info < (3, 12):  # it has a frame of its own
                loops = [loop for loop in loops if not isinstance(loop, _Comprehended)]
            is_comprehended = False
            names = {**frame.f_globals, **locals_of(frame)} if loops else {}
            for loop in loops:
                line = f"{name}:{loop.lineno}"
                end = counters.end_of(loop, line, names, at_line=frame.f_lineno, has_turned=has_turned)
                count, is_over_batches = (None, False)
                if not isinstance(loop, ast.While):
                    count, is_over_batches = count_of(loop.iter, names)
                    if count is None:  # `for batch in DataLoader(...)`, or over range(data.size(0))
                        count, is_over_batches = turns.get(line), not isinstance(turns.get(line), RangeTurns)
                if isinstance(loop, ast.For):
                    count = turns_through(loop, frame.f_lineno, names) or count
                has_own = True
                yield _ended(
                    _Turns(loop, path, line, count, is_over_batches, end, id(frame), not frame.f_trace_lines), names
                )
        elif not is_own and (module := str(frame.f_globals.get("__name__", ""))).partition(".")[0] in SEARCHES:
            function = frame.f_code.co_name
            if (module, function) == ("optuna.study._optimize", "_optimize"):
                yield _Turns(None, path, "optuna's trials", locals_of(frame).get("n_trials"), False)
            elif not module.startswith(("optuna.", *CALLED_ONCE)):
                yield _Turns(None, path, module, None, False)
        if is_of_others(path) and not has_own:  # further out it starts the program, as python-fire does
            yield from _loops_of_library(frame, path, turns, counters, has_turned=has_turned)
        frame = frame.f_back


def _loops_of_library(
    frame: Any, path: str, turns: Mapping[str, int], counters: LoopCounters, *, has_turned: bool
) -> Iterator[_Turns]:
    """Those of a training loop that a package brings (skorch, ultralytics): over a range or a loader, or by a counter.

    Loops over lists and sets are left out: packages loop over what they call. How often any other runs is not known.
    """
    for loop in _loops_around(path, frame.f_lineno):
        names = {**frame.f_globals, **locals_of(frame)}
        value = looped_over(loop.iter, names) if isinstance(loop, ast.For) else None
        is_counted = isinstance(value, range) or hasattr(value, "dataset") or total_of(value) is not None
        if not isinstance(value, list | tuple | Set | Mapping):
            line = f"{path_name(path)}:{loop.lineno}"
            count, is_over_batches = count_of(loop.iter, names) if is_counted else (turns.get(line), True)
            end = counters.end_of(loop, line, names, at_line=frame.f_lineno, has_turned=has_turned)
            yield _ended(
                _Turns(loop, path, line, count, is_over_batches, end, id(frame), not frame.f_trace_lines), names
            )


def _ended(turns: _Turns, names: Mapping[str, Any]) -> _Turns:
    """The same loop, with as many turns as its counter allows where that counts turns; `names` are its variables."""
    clock = clock_end_of(turns.loop, turns.line, names) if turns.loop is not None else None
    end, turns = turns.end, replace(turns, can_be_left=can_be_left(turns.loop, names), clock=clock)
    if end is None or end.is_of_steps:
        return turns
    return replace(turns, count=end.count if turns.count is None else min(turns.count, end.count), end=None)


def _by_branch(turns: _Turns, turns_of_a_step: Callable[[str, int, int], int]) -> _Turns:
    """The same loop with as many turns as steps, where a branch makes one in so many: `if frame % 4 == 0: learn()`."""
    if turns.loop is None or turns.count is None:
        return turns
    each = turns_of_a_step(path_name(turns.path), turns.loop.lineno, turns.loop.end_lineno or 0)
    return replace(turns, count=max(1, turns.count // each))


def _of_loops(
    above: Iterator[_Turns], batches_per_step: int, backward_lines: Sequence[str], update_line: str,
    passes: set[int], by_pass: Mapping[int, int],
) -> ProgramLength | None:  # fmt: skip
    """Multiply the loops around the line that is running; `passes` has how many batches those that it takes have."""
    counted: list[_Turns] = []
    batches: _Turns | None = None
    for each in above:
        if not counted and each.loop is not None and not _may_hold(each, update_line):
            continue
        if not counted and _is_behind_passes(each, backward_lines):
            continue
        is_over_data = each.count is None and not counted and len(passes) == 1 and _ends_with_data(each.loop)
        if is_over_data:
            each = replace(each, count=min(passes))  # noqa: PLW2901
        if each.count is None and each.end is None and each.clock is not None:
            each = replace(each, count=1)  # noqa: PLW2901  (as often as it comes to, `by_clock`)
        elif each.clock is not None:
            each = replace(each, clock=replace(each.clock, is_only=False))  # noqa: PLW2901
        if each.count is None and each.end is None and not _ends_with_inner(each, counted):
            return None
        is_over_batches = each.is_over_batches or is_over_data
        if not counted and not batches_per_step:
            batches_per_step = _passes_in(each, each.path, backward_lines)
            is_over_batches = is_over_batches or batches_per_step > 1
        counted.append(each)
        if is_over_batches and batches is None and each.count is not None:
            batches = each
    if not counted:
        return None
    if batches is None and batches_per_step > 1 and not any(each.end for each in counted):
        passes_per_step = _passes_inside(counted[0], backward_lines)
        if passes_per_step is None:
            return None
        counted[0] = batches = replace(counted[0], is_over_batches=True)
        return _multiplied(counted, batches, passes_per_step)
    of_loader = by_pass.get(batches.count or 0) if batches is not None else None
    return _multiplied(counted, batches, of_loader or batches_per_step)


def _ends_with_inner(outer: _Turns, inside: list[_Turns]) -> bool:
    """Whether a `while` loop ends when the counter of a loop in it does: that one leaves it with a flag."""
    ends = [each.end for each in inside if each.end is not None and each.frame == outer.frame]
    return isinstance(outer.loop, ast.While) and any(not sets_anew(outer.loop, end.names) for end in ends)


def _multiplied(counted: list[_Turns], batches: _Turns | None, batches_per_step: int) -> ProgramLength:
    """The steps of all turns of loops, innermost first; `batches` are those of the one over them."""
    steps, loops, ends = 1, [], list[_Turns]()
    per_epoch = None if batches is None else _steps_of(batches, max(1, batches_per_step))
    for each in counted:
        ends = [end for end in ends if end.frame == each.frame and end.end and not sets_anew(each.loop, end.end.names)]
        ends += [each] if each.end is not None and each.end.is_of_steps else []
        if each.count is not None:
            steps *= per_epoch if each is batches and per_epoch else each.count
        most = [end.end.count for end in ends if end.end is not None]
        steps = min(most, default=steps) if each.count is None else min([steps, *most])
        if each is batches:
            per_epoch = steps
        loops.append((each.line, steps))
    clocks = [replace(each.clock, place=place) for place, each in enumerate(counted) if each.clock is not None]
    is_left_early = any(each.end is None and each.can_be_left and each.clock is None for each in counted)
    at_most = f", {AT_MOST}: one of them can be left early" if is_left_early else ""
    source = f"the loops at {', '.join(each.line for each in counted)}{at_most}"
    return ProgramLength(steps, source, per_epoch, loops=tuple(loops), clock=next(iter(clocks), None))


def _steps_of(turns: _Turns, batches_per_step: int) -> int:
    """Steps of a loop over batches: what is left of them makes none, but where the program's condition says so, or
    accelerate counts, which ends with them."""
    state = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    counts = getattr(state, "_shared_state", {}).get("plugin_kwargs", {})
    ends_with_them = counts.get("num_steps") == batches_per_step and counts.get("sync_with_dataloader", True)
    batches = turns.count or 0
    if ends_with_them or (turns.loop is not None and steps_with_the_rest(turns.loop)):
        return -(-batches // batches_per_step)
    return max(1, batches // batches_per_step)


def _ends_with_data(loop: Any) -> bool:
    """Whether a `while` loop goes on as long as it is given something: `while batch is not None` of a prefetcher."""
    test = getattr(loop, "test", None)
    if not isinstance(test, ast.Compare) or [type(each) for each in test.ops] != [ast.IsNot]:
        return False
    other = test.comparators[0]
    return isinstance(other, ast.Constant) and other.value is None


def _in_loops_above(length: ProgramLength, frame: Any, turns: Mapping[str, int]) -> ProgramLength:
    """The length of a trainer that the program's own loops, over folds or seeds, start again and again."""
    for each in _loops_above(frame, turns, LoopCounters(), has_own=True):
        if not each.count:
            return replace(length, source=f"{length.source}, once: how often {each.line} comes here is not known")
        length = replace(
            length, steps=length.steps * each.count, source=f"{length.source} and the loop at {each.line}",
            evaluation_batches=length.evaluation_batches * each.count, checkpoints=length.checkpoints * each.count,
        )  # fmt: skip
    return length


def _passes_in(turns: _Turns, path: str, backward_lines: Sequence[str]) -> int:
    """Backward passes of one optimizer step that are turns of this very loop, and not of one within it."""
    if not backward_lines or turns.loop is None:
        return 1
    line = max(set(backward_lines), key=list(backward_lines).count)
    file, _, number = line.split(" ")[0].rpartition(":")
    around = _loops_around(path, int(number))[:1] if file == path_name(path) else []
    return _turns_at(line, backward_lines) if [each.lineno for each in around] == [turns.loop.lineno] else 1


def _passes_inside(turns: _Turns, backward_lines: Sequence[str]) -> int | None:
    """Turns of a loop that one optimizer step takes, by where its backward passes are written; None where one is made
    somewhere else. Those of a loop within it are made in one turn."""
    passes = [0]
    for line in set(backward_lines):
        file, _, number = line.split(" ")[0].rpartition(":")
        around = [each.lineno for each in _loops_around(turns.path, int(number))] if number.isdigit() else []
        if turns.loop is None or file != path_name(turns.path) or turns.loop.lineno not in around:
            return None
        passes.append(_turns_at(line, backward_lines) if around[0] == turns.loop.lineno else 1)
    return max(passes) or None


def _turns_at(line: str, backward_lines: Sequence[str]) -> int:
    """How often a line came to a backward pass; one call may make several."""
    return sum(each == line and not isinstance(each, WithinCall) for each in backward_lines)


def _loops_around(path: str, line: int) -> list[Any]:
    """Loops whose body holds a line, innermost first; within the innermost function that holds it."""
    try:
        linecache.checkcache(path)
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return []
    inside: list[Any] = [tree]
    for node in ast.walk(tree):  # outer nodes come before inner ones
        is_block = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.For | ast.While)
        if is_block and node.body[0].lineno <= line <= (node.end_lineno or 0):
            inside.append(node)
        elif isinstance(node, COMPREHENSIONS) and node.lineno <= line <= (node.end_lineno or 0):
            inside += _loops_of_comprehension(node)
    inside.sort(key=lambda node: getattr(node, "lineno", 0))
    functions = [i for i, node in enumerate(inside) if not isinstance(node, ast.For | ast.While)]
    return inside[functions[-1] + 1 :][::-1]


class _Comprehended(ast.For):
    """A loop that is written as a comprehension."""


def _loops_of_comprehension(node: Any) -> list[ast.For]:
    """As `for` statements, outermost first, where something is called for each element."""
    elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    if not any(isinstance(part, ast.Call) for element in elements for part in ast.walk(element)):
        return []
    body: list[ast.stmt] = [ast.Expr(element) for element in elements]
    loops = []
    for generator in node.generators:
        skips: list[ast.stmt] = [ast.Break() for _ in generator.ifs]  # at most so many turns
        loop = _Comprehended(generator.target, generator.iter, skips + body, [])
        loops.append(ast.copy_location(loop, node))
    return loops


def _is_behind_passes(turns: _Turns, backward_lines: Sequence[str]) -> bool:
    """Whether a loop is part of a step, as one over groups of parameters: the step's passes are outside of it, in a
    loop that holds both."""
    loop, is_behind = turns.loop, False
    for line in set(backward_lines):
        file, _, number = line.split(" ")[0].rpartition(":")
        if loop is None or file != path_name(turns.path) or not number.isdigit():
            return False
        around = _loops_around(turns.path, int(number))
        if loop.lineno in [each.lineno for each in around]:
            return False
        is_behind = is_behind or any(each.body[0].lineno <= loop.lineno <= (each.end_lineno or 0) for each in around)
    return is_behind


def _may_hold(turns: _Turns, line: str) -> bool:
    """Whether `line` ("file:number") is inside a loop, or in another file."""
    loop, (name, _, number) = turns.loop, line.partition(" (")[0].rpartition(":")
    return name != path_name(turns.path) or loop.lineno <= int(number) <= (loop.end_lineno or loop.lineno)
