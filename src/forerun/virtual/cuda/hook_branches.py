"""Branches of what a training loop calls after its steps: `def after_step(trainer): if trainer.step % 500 == 0: …`.

Callbacks and hooks do not train, so nothing in them says that a loop's turns decide their branches. Which of them do
shows when they run (`turn_branches.py`): they are reached once after each step, by a counter that rises.
"""

import ast
from collections.abc import Iterator

from forerun.virtual.cuda.later_loops import FUNCTIONS, LOOPS, called_in

CALLED_BY_MODELS = {"forward", "__call__", "__getitem__", "__iter__", "training_step"}
"""Methods that are part of a step or of its data, and with them all that their classes and they call."""


def branches_of_hooks(tree: ast.Module, functions: set[str]) -> Iterator[ast.If]:
    """Every `if` outside of loops in functions that do not train, and that no model or data set calls.

    `functions` are the file's that train.
    """
    of_models = _called_by_models(tree)
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS) and node.name not in functions | of_models:
            yield from _outside_of_loops(node)


def _outside_of_loops(node: ast.AST) -> Iterator[ast.If]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*FUNCTIONS, *LOOPS, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(child, ast.If):
            yield child
        yield from _outside_of_loops(child)


def _called_by_models(tree: ast.Module) -> set[str]:
    """Names of functions that models and data sets call, by themselves or through one another."""
    calls: dict[str, set[str]] = {}
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            inside = {call.rpartition(".")[2] for call in called_in(node.body)}
            calls.setdefault(node.name, set()).update(inside)
        elif isinstance(node, ast.ClassDef):
            methods = {each.name for each in node.body if isinstance(each, FUNCTIONS)}
            names |= methods if methods & CALLED_BY_MODELS else set()
    waiting = list(names)
    while waiting:
        more = calls.get(waiting.pop(), set()) & calls.keys() - names
        names |= more
        waiting += more
    return names
