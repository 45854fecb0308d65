"""How often a loop over an expression runs, as it stands in a program and with the values that its names have."""

import ast
from collections.abc import Mapping
from typing import Any

import torch

COUNTED_CALLS = {"len": len, "range": range, "int": int, "min": min, "max": max}
WRAPPERS = {"enumerate", "tqdm", "trange", "iter", "track", "list"}
"""Calls around what is looped over that change nothing about its length."""
SHORTENED = {"zip", "islice"}
"""Calls that end with the shortest of what they are given."""
READABLE = (
    ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.Call, ast.Load, ast.operator, ast.UnaryOp, ast.USub, ast.List,
    ast.Tuple,
)  # fmt: skip


def count_of(node: ast.expr, names: Mapping[str, Any]) -> tuple[int | None, bool]:
    """How often a loop over an expression runs, and whether it runs over batches."""
    node = _unwrapped(node)
    if isinstance(node, ast.List | ast.Tuple) and not any(
        isinstance(each, ast.Name | ast.Starred) for each in node.elts
    ):
        return len(node.elts), False
    name = name_of(node.func) if isinstance(node, ast.Call) else ""
    if isinstance(node, ast.Call) and node.args and name in SHORTENED:
        return _shortest(node, names, is_slice=name == "islice")
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
    of_parts = [count_of(part, names) for part in (node.args[:1] if is_slice else node.args)]
    counts = [count for count, _ in of_parts]
    if is_slice:
        limits = [looped_over(part, names) for part in node.args[1:]]
        first, last = (0, *limits) if len(limits) == 1 else (*limits, None, None)[:2]
        if len(limits) > 2 or not isinstance(first, int) or not isinstance(last, int):
            return None, False
        counts = [last - first, *(count - first for count in counts if count is not None)]
    lengths = [count for count in counts if count is not None]
    return max(0, min(lengths)) if len(lengths) == len(counts) else None, any(is_over for _, is_over in of_parts)


def _unwrapped(node: ast.expr) -> ast.expr:
    """What a loop runs over, without calls around it that change nothing about its length."""
    while isinstance(node, ast.Call) and node.args and name_of(node.func) in WRAPPERS:
        if name_of(node.func) == "trange":
            return ast.Call(ast.Name("range", ast.Load()), node.args, [])
        node = node.args[0]
    return node


def looped_over(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of an expression that a loop runs over; None where to ask for it could change something."""
    node = _unwrapped(node)
    if not all(isinstance(part, READABLE) for part in ast.walk(node)):
        return None
    calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
    if any(name_of(call.func) not in COUNTED_CALLS for call in calls):
        return None
    try:
        code = compile(ast.fix_missing_locations(ast.Expression(node)), "<loop>", "eval")
        return eval(code, {"__builtins__": {}, **names, **COUNTED_CALLS})
    except (TypeError, NameError, AttributeError, ValueError, NotImplementedError, ArithmeticError):
        return None


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
