"""Which names the tests of a task take from a program: the function under test, and what else only a solution has.

A test that reads `sum` means Python's own even where a program defines one, unless the task is about a function of
that name. What the prompt defines is the task's own. Other names of tests that the reference defines are the program's.
"""

import ast
from functools import cache
from typing import NamedTuple

from forerun.recipes.code_lora.data.tasks import CodeTask


class TestedNames(NamedTuple):
    """Names that tests take from a program."""

    names: tuple[str, ...]
    modules: dict[str, str]
    """Modules among them by name."""


@cache
def names_of_tests(task: CodeTask) -> TestedNames:
    """Names that the task's tests take from a program; the tested function alone where the reference is no Python."""
    used = {node.id for node in ast.walk(_tree(task.tests)) if isinstance(node, ast.Name)}
    modules: dict[str, str] = {}
    names = {task.entry_point}
    for statement in _tree(task.reference).body:
        if isinstance(statement, ast.Import):
            modules |= {a.asname or a.name: a.name for a in statement.names if (a.asname or a.name) in used}
        elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
            names |= {statement.name} & used
        elif isinstance(statement, ast.Assign):
            names |= {n.id for target in statement.targets for n in ast.walk(target) if isinstance(n, ast.Name)} & used
    of_the_prompt = {
        node.name for node in _tree(task.preamble).body if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }  # fmt: skip
    return TestedNames((*sorted(names - of_the_prompt), *sorted(modules)), modules)


def _tree(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])
