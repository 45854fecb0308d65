"""Scripts that train more than once: a head and then the whole model, one task after another.

A program is stopped by an exception when the steps of its training loop repeat. Where more training follows in the
script, the exception ends that loop alone: statements of the script after which something trains are compiled inside a
`try`, with their own line numbers, and the program goes on behind them as if the loop were over. It goes on behind the
outermost loop only: what follows inside of it belongs to the same step, as a generator does to its discriminator.
"""

import ast
import copy
import linecache
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn, optim

TRAINERS, TRAINING_METHODS = ("trainer", "learner", "learn"), {"train", "fit"}
"""Ends of names of what trains, and its methods; `model.train()` changes a mode, a scaler's `fit` trains nothing."""
TRAINING_CALLS = {"backward", "replay"}
"""A CUDA graph may hold the whole step."""
OF_OTHERS = {name for kind in (nn.Module, optim.Optimizer, Tensor, dict) for name in dir(kind)}
"""Methods that what a script is given has, too: a call of one need not be of the script's class."""
STOPPED, STOP, GOES_ON = "__forerun_stopped__", "__forerun_stop__", "__forerun_goes_on__"
"""Names in the script's module: the exception, what was caught, and what decides."""
LOOPS = (ast.For, ast.AsyncFor, ast.While)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
PLAIN = (*LOOPS, ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign)
BODIES = ("body", "handlers", "orelse", "finalbody")


@dataclass(frozen=True)
class Following:
    """What comes after a statement until its function ends."""

    statement: ast.stmt
    calls: frozenset[str]
    """What is called, as it is written."""
    trains: bool
    """Whether something trains for certain, whatever the statement is."""

    def trains_again(self, stop: BaseException) -> bool:
        """Whether training follows: something that does for certain, or what `stop` came out of is called once more."""
        callee = _callee(self.statement, stop)
        return self.trains or (callee is not None and _is_among(callee, self.calls))


def compiled(
    source: bytes | str, file: str, marks: Iterable[Callable[[ast.Module, str], Any]] = ()
) -> tuple[types.CodeType, list[Following]]:
    """A script's code in which the statements before later training can be ended, and what follows each of them.

    `marks` change its tree further.

    Raises:
        SyntaxError: the script's own.
    """
    tree = ast.parse(source, file)
    endable = list(_endable(tree))
    for number, (body, following) in enumerate(endable):
        place = body.index(following.statement)
        body[place] = within_try(following.statement, f"{GOES_ON}({STOP}, {number})")
    for mark in marks:
        mark(tree, file)
    return compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True), [each for _, each in endable]


def names_for(
    following: Sequence[Following], stopped: type[BaseException], next_loop: Callable[[], bool]
) -> dict[str, Any]:
    """What the compiled script's module needs; `next_loop` is asked to begin with another loop and may refuse."""

    def goes_on(stop: BaseException, number: int) -> bool:
        return following[number].trains_again(stop) and not is_in_loop(sys._getframe(1)) and next_loop()

    return {STOPPED: stopped, GOES_ON: goes_on}


def _endable(tree: ast.Module) -> Iterator[tuple[list[ast.stmt], Following]]:
    """Statements that may train and after which something else does, each with the list that holds it."""
    functions = functions_that_train(tree)
    yield from _in_body(tree.body, frozenset(), functions)
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            yield from _in_body(node.body, frozenset(), functions)


def _in_body(body: list[Any], after: frozenset[str], functions: set[str]) -> Iterator[tuple[list[ast.stmt], Following]]:
    """The same of one list of statements; `after` is what is called behind it. What cannot train stays as it is."""
    for statement in reversed(body):
        inside = frozenset(called_in([statement]))
        if isinstance(statement, PLAIN):
            following = Following(statement, after, any(trains_by(each, functions) for each in after))
            may_train = any(trains_by(call, functions) for call in inside)
            if isinstance(statement, (*LOOPS, ast.Expr)):  # `loss = model(batch)` belongs to a step
                may_train = may_train or any(_is_among(call, after) for call in inside)
            if may_train and (following.trains or any(_is_among(call, after) for call in inside)):
                yield body, following
        elif isinstance(statement, ast.If | ast.With | ast.AsyncWith | ast.Try | ast.ExceptHandler):
            below = after
            for part in (getattr(statement, name, []) for name in reversed(BODIES)):
                yield from _in_body(part, below, functions)
                if isinstance(statement, ast.Try):  # what is below runs too; of `if`, only one branch does
                    below |= frozenset(called_in(part))
        after |= inside


def within_try(statement: ast.stmt, goes_on: str) -> ast.stmt:
    """`try: statement`, ended by the exception where the expression `goes_on` is true; a loop's `else` follows."""
    asks = f"if not {goes_on}:\n  raise"
    wrapped = ast.parse(f"try:\n pass\nexcept {STOPPED} as {STOP}:\n {asks}").body[0]
    assert isinstance(wrapped, ast.Try)
    for node in ast.walk(wrapped):
        ast.copy_location(node, statement)
    wrapped.body = [statement]
    if isinstance(statement, LOOPS):
        wrapped.handlers[0].body += copy.deepcopy(statement.orelse)
    return wrapped


def called_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """What is called in statements, not in the functions and classes that they define; a step calls its closure."""
    for node in nodes:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(node, ast.Call):
            yield (call := ast.unparse(node.func))
            if call.endswith(".step"):
                operands = (*node.args, *(keyword.value for keyword in node.keywords))
                yield from (each.id for each in operands if isinstance(each, ast.Name))
        yield from called_in(ast.iter_child_nodes(node))


def _is_among(call: str, calls: Iterable[str]) -> bool:
    """Whether a function is among those called, or a method of that name, of whatever object."""
    owner, _, method = call.rpartition(".")
    return call in calls or (bool(owner) and any(each.endswith("." + method) for each in calls))


def trains_by(call: str, functions: set[str]) -> bool:
    """Whether a call, as it is written, trains; `functions` are the script's that do."""
    owner, _, method = call.rpartition(".")
    if owner in ("", "self"):
        return method in functions
    if method in functions and method not in OF_OTHERS:
        return True
    return method in TRAINING_CALLS or (method in TRAINING_METHODS and owner.lower().endswith(TRAINERS))


def trains(nodes: Iterable[ast.AST], functions: set[str]) -> bool:
    """Whether statements call what trains."""
    return any(trains_by(call, functions) for call in called_in(nodes))


def functions_that_train(tree: ast.Module) -> set[str]:
    """Names of the script's functions and methods that train, by themselves or through one another."""
    calls = {node.name: set(called_in(node.body)) for node in ast.walk(tree) if isinstance(node, FUNCTIONS)}
    names: set[str] = set()
    while True:
        more = {name for name, inside in calls.items() if any(trains_by(call, names) for call in inside)}
        if more <= names:
            return names
        names |= more


def is_in_loop(frame: types.FrameType | None) -> bool:
    """Whether a function that is running was called from a loop, anywhere up to the script's module."""
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
        if frame is not None and any(first <= frame.f_lineno <= last for first, last in _loops(frame)):
            return True
    return False


def _loops(frame: types.FrameType) -> list[tuple[int, int]]:
    """First and last lines of the loops of a frame's file."""
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals)))
    except SyntaxError:
        return []
    return [(node.lineno, node.end_lineno or node.lineno) for node in ast.walk(tree) if isinstance(node, LOOPS)]


def _callee(statement: ast.stmt, stop: BaseException) -> str | None:
    """What the statement was calling when the exception came out of it, as it is written."""
    trace = stop.__traceback__
    if trace is None:
        return None
    spans = list(trace.tb_frame.f_code.co_positions())
    here = spans[trace.tb_lasti // 2]
    spanned: dict[tuple[int | None, ...], ast.expr] = {
        (each.lineno, each.end_lineno, each.col_offset, each.end_col_offset): each.func
        for each in ast.walk(statement)
        if isinstance(each, ast.Call)
    }
    return ast.unparse(spanned[here]) if here in spanned else None
