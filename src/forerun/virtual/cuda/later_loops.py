"""Scripts that train more than once: a head and then the whole model, one task after another.

A program is stopped by an exception when the steps of its training loop repeat. Where more training follows in the
script, the exception ends that loop alone: statements of the script after which something trains are compiled inside a
`try`, with their own line numbers, and the program goes on behind them as if the loop were over. It goes on behind the
outermost loop only: what follows inside of it belongs to the same step, as a generator does to its discriminator. It
goes on behind the last of them as well (`run_end.py`).
"""

import ast
import copy
import linecache
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn, optim

from forerun.virtual.cuda.lines import path_name
from forerun.virtual.cuda.run_end import result_of

TRAINERS, TRAINING_METHODS = ("trainer", "learner", "learn"), {"train", "fit"}
"""Ends of names of what trains, and its methods; `model.train()` changes a mode, a scaler's `fit` trains nothing."""
TRAINING_CALLS = {"backward", "replay"}
"""A CUDA graph may hold the whole step."""
OF_OTHERS = {name for kind in (nn.Module, optim.Optimizer, Tensor, dict) for name in dir(kind)} | {
    "fit", "main", "load", "save", "close", "reset", "log",
}  # fmt: skip
"""Methods that what a script is given has, too: a call of one need not be of the script's class."""
STOPPED, STOP, GOES_ON = "__forerun_stopped__", "__forerun_stop__", "__forerun_goes_on__"
"""Names in the script's module: the exception, what was caught, and what decides."""
RESULT, RETURNED = "__forerun_result__", "__forerun_returned__"
"""What gives the result of a call that was ended, and its name."""
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
    is_whole: bool = False
    """The statement calls a library's trainer, which has the loop."""

    def is_at(self, line: int) -> bool:
        """Whether a line of the script is in the statement."""
        return self.statement.lineno <= line <= (self.statement.end_lineno or self.statement.lineno)

    def trains_again(self, code: types.CodeType, position: int) -> bool:
        """Whether training follows: something that does for certain, or what is called at a position is once more."""
        callee = _callee(self.statement, code, position)
        return self.trains or (callee is not None and _is_among(callee, self.calls))


def compiled(
    source: bytes | str,
    file: str,
    marks: Iterable[Callable[[ast.Module, str], Any]] = (),
    others: Collection[str] = (),
) -> tuple[types.CodeType, list[Following]]:
    """A script's code in which the statements before later training can be ended, and what follows each of them.

    `marks` change its tree further; `others` are functions and methods of its other files that train.

    Raises:
        SyntaxError: the script's own.
    """
    tree = ast.parse(source, file)
    endable = list(_endable(tree, others))
    for number, (body, following) in enumerate(endable):
        place = body.index(following.statement)
        body[place] = within_try(following.statement, f"{GOES_ON}({STOP}, {number})")
    for mark in marks:
        mark(tree, file)
    return compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True), [each for _, each in endable]


def names_for(
    following: Sequence[Following], stopped: type[BaseException], next_loop: Callable[[], bool],
    last_part: Callable[[str], bool] = lambda line: False,
) -> dict[str, Any]:  # fmt: skip
    """What the compiled script's module needs.

    `next_loop` is asked to begin with another loop, `last_part` with what comes behind the last one, at a line of the
    script; each may refuse.
    """

    def goes_on(stop: BaseException, number: int) -> bool:
        each, trace, frame = following[number], stop.__traceback__, sys._getframe(1)
        if trace is None or is_in_loop(frame):
            return False
        if each.trains_again(trace.tb_frame.f_code, trace.tb_lasti):
            return next_loop()
        is_last = each.is_whole and not trains_again(following, stop, frame)
        return is_last and last_part(f"{path_name(frame.f_code.co_filename)}:{each.statement.lineno}")

    return {STOPPED: stopped, GOES_ON: goes_on, RESULT: result_of}


def trains_again(following: Sequence[Following], stop: BaseException, frame: types.FrameType | None) -> bool:
    """Whether training follows somewhere above: in the script's statements in which what `stop` came out of was."""
    at = stop.__traceback__
    position = -1 if at is None else at.tb_lasti
    while frame is not None:
        for each in following:
            if GOES_ON in frame.f_globals and each.is_at(frame.f_lineno) and each.trains_again(frame.f_code, position):
                return True
        frame = frame.f_back
        position = -1 if frame is None else frame.f_lasti
    return False


def _endable(tree: ast.Module, others: Collection[str]) -> Iterator[tuple[list[ast.stmt], Following]]:
    """Statements that may train and after which something else does, each with the list that holds it."""
    functions = functions_that_train(tree, others)
    yield from _in_body(tree.body, frozenset(), functions)
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            yield from _in_body(node.body, frozenset(), functions)


def _in_body(body: list[Any], after: frozenset[str], functions: set[str]) -> Iterator[tuple[list[ast.stmt], Following]]:
    """The same of one list of statements; `after` is what is called behind it. What cannot train stays as it is."""
    for statement in reversed(body):
        inside = frozenset(called_in([statement]))
        if isinstance(statement, PLAIN):
            is_whole = not isinstance(statement, LOOPS) and any(
                _is_of_trainer(call) or (call in functions and _steps_by(statement, call)) for call in inside
            )
            following = Following(statement, after, any(trains_by(each, functions) for each in after), is_whole)
            may_train = any(trains_by(call, functions) for call in inside)
            if isinstance(statement, (*LOOPS, ast.Expr)):  # `loss = model(batch)` belongs to a step
                may_train = may_train or any(_is_among(call, after) for call in inside)
            if is_whole or (may_train and (following.trains or any(_is_among(call, after) for call in inside))):
                yield body, following
        elif isinstance(statement, ast.If | ast.With | ast.AsyncWith | ast.Try | ast.ExceptHandler):
            below = after
            for part in (getattr(statement, name, []) for name in reversed(BODIES)):
                yield from _in_body(part, below, functions)
                if isinstance(statement, ast.Try):  # what is below runs too; of `if`, only one branch does
                    below |= frozenset(called_in(part))
        after |= inside


def _steps_by(statement: ast.stmt, closure: str) -> bool:
    """Whether a statement is an optimizer's step by a closure, which may be the whole training, as L-BFGS has it."""
    call = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
    if not isinstance(call, ast.Call) or not ast.unparse(call.func).endswith(".step"):
        return False
    return closure in (ast.unparse(each) for each in (*call.args, *(keyword.value for keyword in call.keywords)))


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
    elif isinstance(statement, ast.Assign):
        has_result = ast.parse(f"if ({RETURNED} := {RESULT}({STOP})) is not None:\n  x = {RETURNED}").body[0]
        assert isinstance(has_result, ast.If)
        for node in ast.walk(has_result):
            ast.copy_location(node, statement)
        cast(ast.Assign, has_result.body[0]).targets = copy.deepcopy(statement.targets)
        wrapped.handlers[0].body.append(has_result)
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
            elif _is_given_loss_and_optimizer(node):
                yield f"{call}.backward"
        yield from called_in(ast.iter_child_nodes(node))


def _is_given_loss_and_optimizer(call: ast.Call) -> bool:
    """Whether it is of an object that scales, goes back and updates: `loss_scaler(loss, optimizer, …)`, as timm's."""
    names = [ast.unparse(each).lower() for each in call.args[:2]]
    is_told = any(word in ast.unparse(call.func).lower() for word in ("log", "print", "save", "write"))
    return len(names) == 2 and names[0].endswith("loss") and "opt" in names[1] and not is_told


def _is_among(call: str, calls: Iterable[str]) -> bool:
    """Whether a function is among those called, or a method of that name, of whatever object."""
    owner, _, method = call.rpartition(".")
    return call in calls or (bool(owner) and any(each.endswith("." + method) for each in calls))


def trains_by(call: str, functions: set[str]) -> bool:
    """Whether a call, as it is written, trains; `functions` are the script's that do."""
    owner, _, method = call.rpartition(".")
    if owner in ("", "self"):
        return method in functions
    is_own = method in functions and (
        method not in OF_OTHERS or call in functions or f"{owner.partition('(')[0]}.{method}" in functions
    )
    return is_own or method in TRAINING_CALLS or _is_of_trainer(call)


def _is_of_trainer(call: str) -> bool:
    """Whether it is a library's trainer that trains."""
    owner, _, method = call.rpartition(".")
    return method in TRAINING_METHODS and owner.lower().endswith(TRAINERS)


def trains(nodes: Iterable[ast.AST], functions: set[str]) -> bool:
    """Whether statements call what trains."""
    return any(trains_by(call, functions) for call in called_in(nodes))


def functions_that_train(tree: ast.Module, others: Collection[str] = ()) -> set[str]:
    """Names of the script's functions and methods that train, by themselves or through one another, or `others`."""
    return names_that_train([tree], others)


def names_that_train(trees: Iterable[ast.Module], others: Collection[str] = ()) -> set[str]:
    """The same of several files; `others` are of files that are not among them, which these may define anew."""
    calls: dict[str, set[str]] = {}
    nodes = [each for tree in trees for each in ast.walk(tree)]
    for node in nodes:
        if isinstance(node, FUNCTIONS):
            calls.setdefault(node.name, set()).update(called_in(node.body))
    names = set(others) - calls.keys()
    while True:
        more = {name for name, inside in calls.items() if any(trains_by(call, names) for call in inside)}
        more |= _methods_that_train(nodes, names | more)
        if more <= names:
            return names
        names |= more


def _methods_that_train(nodes: Iterable[ast.AST], names: Collection[str]) -> set[str]:
    """Methods that train and whose names those of other objects have, `fit` of a class of the script's own: with the
    class, `Runner.fit`, and with what an object of it is called, `runner.fit`."""
    qualified = {each for each in names if "." in each}
    qualified |= {
        f"{node.name}.{method.name}"
        for node in nodes
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, FUNCTIONS) and method.name in names and method.name in OF_OTHERS
        if any(trains_by(call, set(names)) for call in called_in(method.body))
    }
    of_class = [each.partition(".") for each in qualified]
    for node in nodes if of_class else ():
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made_of = ast.unparse(node.value.func).rpartition(".")[2]
            methods = [method for owner, _, method in of_class if owner == made_of]
            qualified |= {f"{ast.unparse(target)}.{method}" for target in node.targets for method in methods}
    return qualified


def is_in_loop(frame: types.FrameType | None) -> bool:
    """Whether a function that is running was called from a loop, anywhere up to the script's module."""
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
        if frame is not None and any(first <= frame.f_lineno <= last for first, last in loops_of(frame)):
            return True
    return False


def loops_of(frame: types.FrameType) -> list[tuple[int, int]]:
    """First and last lines of the loops of a frame's file."""
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals)))
    except SyntaxError:
        return []
    return [(node.lineno, node.end_lineno or node.lineno) for node in ast.walk(tree) if isinstance(node, LOOPS)]


def _callee(statement: ast.stmt, code: types.CodeType, position: int) -> str | None:
    """What the statement calls at a position of its code, as it is written."""
    here = list(code.co_positions())[position // 2]
    spanned: dict[tuple[int | None, ...], ast.expr] = {
        (each.lineno, each.end_lineno, each.col_offset, each.end_col_offset): each.func
        for each in ast.walk(statement)
        if isinstance(each, ast.Call)
    }
    return ast.unparse(spanned[here]) if here in spanned else None
