"""Where the condition of a branch stands, which need not be in the `if`: a flag, or a small function of the file.

`if divisible_by(step, 100):` has the remainder in a function, `is_due = step % 100 == 0` a few lines above. A branch
that keeps the best of something (`if score > best: best = score; save()`) asks for values that nobody can know.
"""

import ast
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from forerun.virtual.cuda.later_loops import FUNCTIONS, LOOPS, called_in
from forerun.virtual.cuda.loop_counters import names_in

BEST = "__forerun_best__"
"""Name in the script's module: what says whether a branch that keeps the best is taken."""
COUNTER = "__forerun_counter__"
"""Name of what a condition of a counter is given."""
OPTIONS = ("arg", "cfg", "conf", "opt", "hparams", "setting", "flags", "params")
"""Parts of names of what has a program's options."""
KEEPING = ("save", "checkpoint", "state_dict", "copy")
"""Parts of the names of what keeps a model."""
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
SIMPLE = (
    ast.Name, ast.Attribute, ast.Constant, ast.Subscript, ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop, ast.Load,
)  # fmt: skip
"""What can be read twice."""


def remainders(test: ast.expr) -> Iterator[ast.BinOp]:
    """Remainders in a condition, or what would be one of numbers."""
    yield from (part for part in ast.walk(test) if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod))


def ask_first(test: ast.expr, remainder: ast.BinOp) -> None:
    """Put a remainder before comparisons of its counter, as in `epoch > 0 and epoch % 10 == 0`.

    Of these Python asks the first one alone in the first turn. What may keep a fault from happening stays in front:
    what is no comparison with a number, and what is about the period.
    """
    if not isinstance(test, ast.BoolOp) or not isinstance(test.op, ast.And):
        return
    place = next((i for i, each in enumerate(test.values) if remainder in ast.walk(each)), 0)
    if all(_is_of_counter(each, remainder) for each in test.values[:place]):
        test.values.insert(0, test.values.pop(place))


def _is_of_counter(test: ast.expr, remainder: ast.BinOp) -> bool:
    """Whether a condition compares something with a number, or what a remainder is of with anything; not its period."""
    if (
        not isinstance(test, ast.Compare)
        or len(test.ops) != 1
        or not isinstance(test.ops[0], (*ORDERS, ast.Eq, ast.NotEq))
    ):
        return False
    sides = (test.left, test.comparators[0])
    is_number = any(isinstance(each, ast.Constant) and isinstance(each.value, int | float) for each in sides)
    is_simple = all(isinstance(part, SIMPLE) for side in sides for part in ast.walk(side))
    is_number = is_number or bool(names_in(test) & names_in(remainder.left))
    return is_number and is_simple and not names_in(test) & names_in(remainder.right)


def residue_of(test: ast.expr, remainder: ast.BinOp) -> ast.expr:
    """What a condition compares a remainder with, where that can be read twice; else 0."""
    for part in ast.walk(test):
        if isinstance(part, ast.Compare) and len(part.ops) == 1 and isinstance(part.ops[0], ast.Eq):
            sides = [part.left, part.comparators[0]]
            other = next((sides[1 - place] for place in (0, 1) if sides[place] is remainder), None)
            if other is not None and all(isinstance(each, SIMPLE) for each in ast.walk(other)):
                return copy.deepcopy(other)
    return ast.copy_location(ast.Constant(0), remainder)


def conditions_beside(test: ast.expr, remainder: ast.BinOp, loop: ast.AST | None) -> list[ast.expr]:
    """What must hold beside a remainder, as functions: of the program's options, and of its counter.

    The latter, which is left out where there is none, is given what the remainder is taken of.
    """
    every = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else []
    others = [each for each in every if remainder not in ast.walk(each)]
    options = [copy.deepcopy(each) for each in others if _is_of_options(each, loop)]
    name, offset = _name_and_offset(remainder.left)
    limits = [_AsName(name).visit(copy.deepcopy(each)) for each in others if _is_limit(each, name, remainder)]
    functions: list[ast.expr] = [_function([], options)]
    if limits:
        shifted: ast.expr = ast.BinOp(ast.Name(COUNTER, ast.Load()), ast.Sub(), ast.Constant(offset))
        inner = _function([COUNTER], limits)
        functions.append(ast.Lambda(_arguments([COUNTER]), ast.Call(inner, [shifted], [])))
    for part in (part for each in functions for part in ast.walk(each)):
        if isinstance(part, ast.expr | ast.arg) and not hasattr(part, "lineno"):
            ast.copy_location(part, test)
    return functions


def _is_of_options(test: ast.expr, loop: ast.AST | None) -> bool:
    """Whether a condition is of what its loop gives no value: names, and options by the names that are usual."""
    if not all(isinstance(part, (*SIMPLE, ast.Compare, ast.cmpop)) for part in ast.walk(test)):
        return False
    names = {part.id for part in ast.walk(test) if isinstance(part, ast.Name)}
    parts = [] if loop is None else [part for part in ast.walk(loop) if isinstance(part, ast.Name)]
    stored = {part.id for part in parts if isinstance(part.ctx, ast.Store)} if parts else names
    attributes = [ast.unparse(part.value).lower() for part in ast.walk(test) if isinstance(part, ast.Attribute)]
    is_set = all(any(word in each for word in OPTIONS) for each in attributes)
    return bool(names) and is_set and (bool(attributes) or not names & stored)


def _is_limit(test: ast.expr, name: str, remainder: ast.BinOp) -> bool:
    """Whether a condition compares the counter of a remainder with something that can be read, and no period."""
    if not name or not isinstance(test, ast.Compare) or names_in(test) & names_in(remainder.right):
        return False
    is_simple = all(isinstance(part, (*SIMPLE, ast.Compare, ast.cmpop)) for part in ast.walk(test))
    return is_simple and name in names_in(test)


def _name_and_offset(counter: ast.expr) -> tuple[str, int]:
    """Of `step`, `step + 1` and the like the variable and what is added to it; of others no name."""
    if isinstance(counter, ast.Name | ast.Attribute):
        return ast.unparse(counter), 0
    if isinstance(counter, ast.BinOp) and isinstance(counter.op, ast.Add | ast.Sub):
        name, added = counter.left, counter.right
        if isinstance(name, ast.Constant) and isinstance(counter.op, ast.Add):
            name, added = added, name
        value = added.value if isinstance(added, ast.Constant) else None
        if isinstance(name, ast.Name | ast.Attribute) and isinstance(value, int):
            return ast.unparse(name), value if isinstance(counter.op, ast.Add) else -value
    return "", 0


def _arguments(names: list[str]) -> ast.arguments:
    return ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])


def _function(names: list[str], tests: Sequence[Any]) -> ast.Lambda:
    body: ast.expr = ast.BoolOp(ast.And(), list(tests)) if len(tests) > 1 else next(iter(tests), ast.Constant(True))
    return ast.Lambda(_arguments(names), body)


class _AsName(ast.NodeTransformer):
    """Puts a name in the place of a variable or attribute."""

    def __init__(self, place: str) -> None:
        self.place = place

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) == self.place:
            return ast.copy_location(ast.Name(COUNTER, ast.Load()), node)
        return self.generic_visit(node)


def write_out_calls(tree: ast.Module) -> None:
    """Put in conditions what a function of the file that does nothing else says of a remainder."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and _says_remainder(node)}
    if not functions:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            node.test = _WrittenOut(functions).visit(node.test)


def _says_remainder(node: ast.FunctionDef) -> bool:
    """Whether a function only returns a condition of a remainder of its arguments, which it has by their places."""
    last, spec = node.body[-1], node.args
    if len(node.body) > 1 or not isinstance(last, ast.Return) or last.value is None or node.decorator_list:
        return False
    has_more = spec.vararg or spec.kwarg or spec.kwonlyargs or spec.posonlyargs or spec.defaults
    if has_more or next(remainders(last.value), None) is None:
        return False
    names = {part.id for part in ast.walk(last.value) if isinstance(part, ast.Name)}
    return names <= {each.arg for each in spec.args}


class _WrittenOut(ast.NodeTransformer):
    """Puts what functions return in the place of their calls."""

    def __init__(self, functions: dict[str, ast.FunctionDef]) -> None:
        self.functions = functions

    def visit_Call(self, node: ast.Call) -> ast.expr:
        function = self.functions.get(node.func.id) if isinstance(node.func, ast.Name) else None
        parts = [part for value in node.args for part in ast.walk(value)]
        if function is None or node.keywords or not all(isinstance(part, SIMPLE) for part in parts):
            return node
        if len(node.args) != len(function.args.args):
            return node
        values = dict(zip((each.arg for each in function.args.args), node.args, strict=True))
        result = copy.deepcopy(function.body[-1].value)  # type: ignore[attr-defined]
        for part in ast.walk(result):
            ast.copy_location(part, node)
        return _WithValues(values).visit(result)


class _WithValues(ast.NodeTransformer):
    """Puts values in the place of names."""

    def __init__(self, values: dict[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copy.deepcopy(self.values.get(node.id, node))


def turn_round(tree: ast.Module) -> None:
    """Make `if step % 10: continue`, and a `return` in functions, a branch of all that follows it."""
    for node in ast.walk(tree):
        if isinstance(node, LOOPS):
            _turn_round(node.body, lambda each: isinstance(each, ast.Continue))
        elif isinstance(node, FUNCTIONS):
            _turn_round(node.body, lambda each: isinstance(each, ast.Return) and each.value is None)


def _turn_round(body: list[ast.stmt], leaves: Callable[[ast.stmt], bool]) -> None:
    for place, each in enumerate(body[:-1]):
        if not isinstance(each, ast.If) or each.orelse or len(each.body) > 1 or not leaves(each.body[0]):
            continue
        if next(remainders(each.test), None) is not None:
            test = ast.copy_location(ast.UnaryOp(ast.copy_location(ast.Not(), each.test), each.test), each.test)
            body[place:] = [ast.copy_location(ast.If(test, body[place + 1 :], []), each)]
            return


def flags_of(tree: ast.Module) -> dict[ast.If, ast.Assign]:
    """What gave the flag its value that each `if` asks, where one stands above it in the same function."""
    flags: dict[ast.If, ast.Assign] = {}
    for scope in ast.walk(tree):
        if not isinstance(scope, (*FUNCTIONS, ast.Module)):
            continue
        values: dict[str, ast.Assign] = {}
        for node in _in_order(scope):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                values[node.targets[0].id] = node
            elif isinstance(node, ast.If):
                names = (part.id for part in ast.walk(node.test) if isinstance(part, ast.Name))
                options = (values[name] for name in names if name in values)
                flag = next((each for each in options if isinstance(each.value, ast.Compare | ast.BoolOp)), None)
                if flag is not None:
                    flags[node] = flag
    return flags


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function as they are written, without those of functions in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*FUNCTIONS, ast.Lambda)):
            yield child
            yield from _in_order(child)


def mark_best(tree: ast.Module) -> bool:
    """Let branches of a file that keep the best be decided when they are reached; returns whether there are any."""
    is_marked = False
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and _keeps_best(node):
            call = ast.Call(ast.Name(BEST, ast.Load()), [node.test], [])
            for part in (call, call.func):
                ast.copy_location(part, node.test)
            node.test, is_marked = call, True
    return is_marked


def _keeps_best(node: ast.If) -> bool:
    """Whether a branch keeps a model where something is better, and that as what the next has to beat."""
    if not any(part in call.rpartition(".")[2].lower() for call in called_in(node.body) for part in KEEPING):
        return False
    sides = {
        ast.unparse(side)
        for part in ast.walk(node.test)
        if isinstance(part, ast.Compare) and len(part.ops) == 1 and isinstance(part.ops[0], ORDERS)
        for side in (part.left, part.comparators[0])
    }
    targets = (target for each in node.body if isinstance(each, ast.Assign) for target in each.targets)
    return any(ast.unparse(target) in sides for target in targets)
