"""Programming tasks with unit tests, from files in the formats of HumanEval and MBPP.

HumanEval (Chen et al. 2021): `task_id, prompt, entry_point, canonical_solution, test`, where `test` defines
`check(candidate)`. MBPP (Austin et al. 2021): `task_id, text, code, test_list` and perhaps `test_setup_code`; the
sanitised form says `prompt` for `text`. Files are JSON lines or one JSON list, gzipped or not.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.data.json_rows import read_rows
from forerun.errors import BadData

HUMANEVAL = ("task_id", "prompt", "entry_point", "canonical_solution", "test")
MBPP = ("task_id", "code", "test_list")


@dataclass(frozen=True)
class CodeTask:
    """One function to write."""

    task_id: str
    instruction: str
    """Prompt for a model that follows instructions."""
    prompt: str
    """Prompt for a model that only continues text."""
    preamble: str
    """Code that a whole answer may rely on: imports and helpers of the prompt."""
    entry_point: str
    """Name of the function that is tested."""
    reference: str
    """A program that passes."""
    tests: str
    """Code to run after a program; raises where it is wrong. Empty where there are none."""
    kind: str = ""
    """Group of the task in result tables."""


def read_tasks(path: Path) -> list[CodeTask]:
    """The tasks of a file in either format.

    Raises:
        BadData: it cannot be read, is empty, has neither format's fields, or two tasks of one id.
    """
    tasks: dict[str, CodeTask] = {}
    for number, row in enumerate(read_rows(path), start=1):
        task = _task(row, f"{path}, row {number}")
        if task.task_id in tasks:
            raise BadData(
                f"{path}, row {number}: each task has a task_id of its own; found {task.task_id} again. Remove the "
                f"row, or give it another."
            )
        tasks[task.task_id] = task
    return list(tasks.values())


def _task(row: Mapping[str, Any], where: str) -> CodeTask:
    if "task_id" in row and all(isinstance(row.get(field), str) for field in HUMANEVAL[1:]):
        return _humaneval(row, where)
    text = row.get("text", row.get("prompt"))
    if all(field in row for field in MBPP) and isinstance(text, str) and isinstance(row["test_list"], list):
        return _mbpp(row, text, where)
    raise BadData(
        f"{where}: tasks have the fields of HumanEval ({', '.join(HUMANEVAL)}) or of MBPP (text, {', '.join(MBPP)}); "
        f"found {', '.join(sorted(row)) or 'no fields'}. Convert the file to one of the two."
    )


def _humaneval(row: Mapping[str, Any], where: str) -> CodeTask:
    prompt, name = row["prompt"], row["entry_point"]
    if f"def {name}" not in prompt or "def check(" not in row["test"]:
        raise BadData(
            f"{where}: prompt must begin the function that entry_point names, and test must define check(candidate); "
            f"found entry_point {name!r}, prompt {prompt[:40]!r} and test {row['test'][:40]!r}. Correct or drop the "
            f"row."
        )
    return CodeTask(
        task_id=str(row["task_id"]),
        instruction=f"Complete this Python function.\n\n```python\n{prompt.strip()}\n```",
        prompt=prompt,
        preamble=prompt[: prompt.rfind(f"def {name}")],
        entry_point=name,
        reference=prompt + row["canonical_solution"],
        tests=f"{row['test']}\ncheck({name})\n",
    )


def _mbpp(row: Mapping[str, Any], text: str, where: str) -> CodeTask:
    tests = [str(test) for test in row["test_list"]]
    listed = "\n".join(tests)
    setup = str(row.get("test_setup_code") or "")
    return CodeTask(
        task_id=str(row["task_id"]),
        instruction=f"{text.strip()}\nThe function must pass these tests:\n{listed}",
        prompt=f'"""\n{text.strip()}\n{listed}\n"""\n',
        preamble="",
        entry_point=_tested_name(tests, str(row["code"]), where),
        reference=str(row["code"]).replace("\r\n", "\n"),
        tests=f"{setup}\n{listed}\n",
    )


def _tested_name(tests: Sequence[str], code: str, where: str) -> str:
    """Name of the solution's function that the tests call, the last of several."""
    try:
        called = {n.id for test in tests for n in ast.walk(ast.parse(test)) if isinstance(n, ast.Name)}
        defined = [n.name for n in ast.parse(code).body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    except SyntaxError as error:
        raise BadData(
            f"{where}: code and test_list must be Python; found {error.msg}. Correct or drop the row."
        ) from error
    names = [name for name in defined if name in called]
    if not names:
        raise BadData(
            f"{where}: test_list must call a function that code defines; found {', '.join(defined) or 'none'}."
        )
    return names[-1]
