"""How often a program's own generator will yield, as one that logs around a loader (`for batch in log(loader)`)."""

import ast
import linecache
from types import GeneratorType
from typing import Any

from forerun.virtual.cuda.loop_sizes import count_of

BLOCKS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def turns_of(generator: "GeneratorType[Any, Any, Any]") -> tuple[int | None, bool]:
    """How often a generator that has not begun will yield, and whether it does once for each batch.

    Known where it yields in one place, in one `for` loop and under no condition, over something that knows its length.
    """
    frame, code = generator.gi_frame, generator.gi_code
    function = _function_at(code.co_filename, code.co_firstlineno)
    if frame is None or function is None:
        return None, False
    ways = list(_ways_to_yields(function.body, []))
    if len(ways) != 1:
        return None, False
    *around, place = ways[0]
    loops = [node for node in around if isinstance(node, ast.For)]
    if len(loops) != len(around) or len(loops) != isinstance(place, ast.Yield):
        return None, False
    values = loops[0].iter if loops else place.value
    return count_of(values, {**frame.f_globals, **frame.f_locals})


def _function_at(path: str, line: int) -> ast.FunctionDef | None:
    """The function whose code begins at a line, which is that of its first decorator."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and line in (node.lineno, *(each.lineno for each in node.decorator_list)):
            return node
    return None


def _ways_to_yields(nodes: Any, around: list[Any]) -> Any:
    """Each `yield`, behind the loops and conditions around it; `with` and `try` change nothing."""
    for node in nodes:
        if isinstance(node, BLOCKS):
            continue
        if isinstance(node, ast.Yield | ast.YieldFrom):
            yield [*around, node]
        is_around = isinstance(node, ast.For | ast.While | ast.AsyncFor | ast.If | ast.IfExp)
        yield from _ways_to_yields(ast.iter_child_nodes(node), [*around, node] if is_around else around)
