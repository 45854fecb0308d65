"""Where the condition of a branch stands, which need not be in the `if`: a flag, or a small function of the file.

`if divisible_by(step, 100):` has the remainder in a function, `is_due = step % 100 == 0` a few lines above. A branch
that keeps the best of something (`if score > best: best = score; save()`) asks for values that nobody can know.
"""

import ast
import copy
from collections.abc import Callable, Iterator

from forerun.virtual.cuda.later_loops import FUNCTIONS, LOOPS, called_in
from forerun.virtual.cuda.loop_counters import names_in

BEST = "__forerun_best__"
"""Name in the script's module: what says whether a branch that keeps the best is taken."""
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
    if all(_is_of_counter(each, names_in(remainder.right)) for each in test.values[:place]):
        test.values.insert(0, test.values.pop(place))


def _is_of_counter(test: ast.expr, period: frozenset[str]) -> bool:
    """Whether a condition compares something with a number, and nothing of the `period`."""
    if (
        not isinstance(test, ast.Compare)
        or len(test.ops) != 1
        or not isinstance(test.ops[0], (*ORDERS, ast.Eq, ast.NotEq))
    ):
        return False
    sides = (test.left, test.comparators[0])
    is_number = any(isinstance(each, ast.Constant) and isinstance(each.value, int | float) for each in sides)
    is_simple = all(isinstance(part, SIMPLE) for side in sides for part in ast.walk(side))
    return is_number and is_simple and not names_in(test) & period


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
