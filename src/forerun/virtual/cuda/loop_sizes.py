"""How often a loop over an expression runs, as it stands in a program and with the values that its names have."""

import ast
import inspect
import linecache
import math
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from functools import cache
from itertools import count, cycle, repeat
from typing import Any

import torch

COUNTED_CALLS = {"len": len, "range": range, "int": int, "min": min, "max": max}
WRAPPERS = {"enumerate", "tqdm", "trange", "iter", "track", "list"}
"""Calls around what is looped over that change nothing about its length."""
MOST_VALUES = 20
"""Of a loop over phases, whose conditions are asked for each of them."""
SHORTENED = {"zip", "islice"}
"""Calls that end with the shortest of what they are given."""
ENDLESS = (cycle, count, repeat)
"""Iterators without an end; `repeat` with a count has one."""
ALL_OF: dict[str, Callable[[Iterable[int]], int]] = {"chain": sum, "product": math.prod}
"""Calls whose length follows from those of all that they are given."""
VIEWS = {"items", "keys", "values"}
"""Methods of a dictionary that are looped over."""
READABLE = (
    ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.Call, ast.Load, ast.operator, ast.UnaryOp, ast.USub, ast.List,
    ast.Tuple, ast.Subscript, ast.Slice,
)  # fmt: skip
DECIDABLE = (
    ast.Name, ast.Constant, ast.Load, ast.Compare, ast.cmpop, ast.BoolOp, ast.boolop, ast.UnaryOp, ast.Not, ast.List,
    ast.Tuple, ast.Set,
)  # fmt: skip
"""What a condition may be made of that is asked for other turns of a loop."""


def count_of(node: ast.expr, names: Mapping[str, Any]) -> tuple[int | None, bool]:
    """How often a loop over an expression runs, and whether it runs over batches."""
    node = unwrapped(node)
    if isinstance(node, ast.List | ast.Tuple) and not any(
        isinstance(each, ast.Name | ast.Starred) for each in node.elts
    ):
        return len(node.elts), False
    name = name_of(node.func) if isinstance(node, ast.Call) else ""
    if isinstance(node, ast.Call) and node.args and name in SHORTENED:
        return _shortest(node, names, is_slice=name == "islice")
    if isinstance(node, ast.Call) and node.args and name in ALL_OF:
        counts = [count_of(part, names) for part in node.args]
        if any(count is None for count, _ in counts) or node.keywords:
            return None, False
        return ALL_OF[name](count or 0 for count, _ in counts), any(is_over for _, is_over in counts)
    value = looped_over(node, names)
    if isinstance(value, list | tuple) and any(isinstance(each, torch.optim.Optimizer) for each in value):
        return 1, False  # a turn of it is a part of a step
    try:
        return len(value), not isinstance(value, range)
    except (TypeError, ValueError, NotImplementedError):
        total = total_of(value)
        return total, total is not None


def total_of(bar: Any) -> int | None:
    """What a bar of progress around an iterable was told (tqdm, ultralytics' own); None of anything else."""
    total = getattr(bar, "total", None) if hasattr(bar, "iterable") else None
    return total if isinstance(total, int) else None


def _shortest(node: ast.Call, names: Mapping[str, Any], *, is_slice: bool) -> tuple[int | None, bool]:
    """The same of what ends with the first of several, and of a part of something."""
    parts = node.args[:1] if is_slice else [part for part in node.args if not _is_endless(part, names)]
    of_parts = [count_of(part, names) for part in parts]
    counts = [count for count, _ in of_parts]
    if is_slice:
        limits = [looped_over(part, names) for part in node.args[1:]]
        first, last = (0, *limits) if len(limits) == 1 else (*limits, None, None)[:2]
        if len(limits) > 2 or not isinstance(first, int) or not isinstance(last, int):
            return None, False
        counts = [last - first, *(count - first for count in counts if count is not None)]
    lengths = [count for count in counts if count is not None]
    return max(0, min(lengths)) if lengths and len(lengths) == len(counts) else None, any(
        is_over for _, is_over in of_parts
    )


def _is_endless(node: ast.expr, names: Mapping[str, Any]) -> bool:
    """Whether what is looped over never ends: one of `itertools`, or a generator of the program's own that is so."""
    if not isinstance(node, ast.Call):
        return isinstance(looped_over(node, names), ENDLESS)
    function = value_of(node.func, names) if isinstance(node.func, ast.Name | ast.Attribute) else None
    if any(function is each for each in ENDLESS):
        return function is not repeat or len(node.args) + len(node.keywords) == 1
    code = getattr(function, "__code__", None)
    return code is not None and bool(code.co_flags & inspect.CO_GENERATOR) and goes_on(code.co_filename, code.co_name)


@cache
def goes_on(path: str, function: str) -> bool:
    """Whether a function of a file yields in a loop that nothing ends: `while True:` without a `break` of its own."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return False
    bodies = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function]
    loops = [part for body in bodies for part in ast.walk(body) if isinstance(part, ast.While)]
    ends = (ast.Break, ast.Return, ast.Raise)
    return any(
        isinstance(loop.test, ast.Constant) and loop.test.value and not any(isinstance(x, ends) for x in ast.walk(loop))
        for loop in loops
    )


def unwrapped(node: ast.expr) -> ast.expr:
    """What a loop runs over, without calls around it that change nothing about its length."""
    while isinstance(node, ast.Call) and node.args and name_of(node.func) in WRAPPERS:
        if name_of(node.func) == "trange":
            return ast.Call(ast.Name("range", ast.Load()), node.args, [])
        node = node.args[0]
    return node


def looped_over(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of an expression that a loop runs over; None where to ask for it could change something."""
    node = unwrapped(node)
    if not all(isinstance(part, READABLE) for part in ast.walk(node)):
        return None
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and not (name_of(part.func) in COUNTED_CALLS or _is_view(part, names)):
            return None
        if isinstance(part, ast.Subscript) and type(looped_over(part.value, names)) not in (dict, list, tuple):
            return None
    return value_of(node, {**names, **COUNTED_CALLS})


def _is_view(call: ast.Call, names: Mapping[str, Any]) -> bool:
    """Whether it is of a dictionary, all of which is looped over."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr in VIEWS else None
    return owner is not None and isinstance(looped_over(owner, names), dict)


def value_of(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of an expression with the values that names have; None where it has none."""
    try:
        code = compile(ast.fix_missing_locations(ast.Expression(node)), "<loop>", "eval")
        return eval(code, {"__builtins__": {}, **names})
    except (LookupError, TypeError, NameError, AttributeError, ValueError, NotImplementedError, ArithmeticError):
        return None


def turns_through(loop: ast.For, line: int, names: Mapping[str, Any]) -> int | None:
    """Turns of a loop that come to a line in it: `if phase == "train":` in one over two phases lets one of them.

    None where no condition around the line is of what is looped over.
    """
    values = looped_over(loop.iter, names)
    if not isinstance(values, list | tuple | KeysView | ItemsView | ValuesView | dict) or len(values) > MOST_VALUES:
        return None
    tests = list(_tests_around(loop, line))
    results = [[_holds(test, loop, value, names) == way for test, way in tests] for value in values]
    is_decided = any(len({row[place] for row in results}) > 1 for place in range(len(tests)))
    return sum(all(row) for row in results) if is_decided else None


def _tests_around(loop: ast.For, line: int) -> Iterator[tuple[ast.expr, bool]]:
    """Conditions in a loop within which a line stands, and what each of them is there."""
    for node in ast.walk(loop):
        if isinstance(node, ast.If) and all(isinstance(part, DECIDABLE) for part in ast.walk(node.test)):
            for body, way in ((node.body, True), (node.orelse, False)):
                if body and body[0].lineno <= line <= (body[-1].end_lineno or line):
                    yield node.test, way


def _holds(test: ast.expr, loop: ast.For, value: Any, names: Mapping[str, Any]) -> bool:
    """Whether a condition holds in the turn of a loop that has a value, or a name that the turn gives to one."""
    targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
    values = value if isinstance(loop.target, ast.Tuple) else [value]
    now = {**names, **{each.id: own for each, own in zip(targets, values, strict=False) if isinstance(each, ast.Name)}}
    for statement in loop.body:
        if isinstance(statement, ast.Assign) and all(isinstance(part, DECIDABLE) for part in ast.walk(statement.value)):
            now |= {each.id: value_of(statement.value, now) for each in statement.targets if isinstance(each, ast.Name)}
    return bool(value_of(test, now))


def name_of(node: ast.expr) -> str:
    """The last name of a called function as it is written; empty where it is no name."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def steps_with_the_rest(loop: ast.AST) -> bool:
    """Whether a loop over batches updates behind its last one, too: `if (i + 1) % 4 == 0 or i + 1 == len(loader):`.

    The condition may have a name, or be that of the turns which are left out (`continue`).
    """
    names = {
        target.id: each.value
        for each in ast.walk(loop)
        if isinstance(each, ast.Assign)
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    for branch in (each for each in ast.walk(loop) if isinstance(each, ast.If)):
        test = names.get(branch.test.id) if isinstance(branch.test, ast.Name) else branch.test
        leaves = isinstance(branch.body[-1], ast.Continue)
        calls = (each.func for part in branch.body for each in ast.walk(part) if isinstance(each, ast.Call))
        joins = ast.And if leaves else ast.Or
        if (leaves or "step" in map(name_of, calls)) and isinstance(test, ast.BoolOp) and isinstance(test.op, joins):
            counts = [any(isinstance(each, ast.Mod) for each in ast.walk(part)) for part in test.values]
            if any(counts) and not all(counts):
                return True
    return False
