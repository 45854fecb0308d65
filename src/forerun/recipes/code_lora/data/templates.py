"""Tasks for small decoders: chains of parametrised operations, each with wording, code and unit tests; no files needed.

77 operations over numbers, texts and lists (`code_operations.toml`) are chained where kinds match, so that two
make over a thousand templates and three some twenty thousand; constants are drawn for every task. Two distributions:

- *documents*, what a decoder is pretrained on: a comment that names one or two operations in the order in which they
  are done (`# add 7 to each number, then return the sum`), and the function below it;
- *instructions*, what it is adapted to: a request for two or three operations that names the last first (`… return the
  sum, but first add 7 to each number`), answered by a fenced block with type hints.

A model that has only seen documents knows every word and operation of the instructions, but not the order, the length
or the form. Tests are calls of the function with drawn inputs beside what the reference returns.
"""

import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from forerun.recipes.code_lora.data.tasks import CodeTask

NAME = "solve"
FILE = Path(__file__).parent / "code_operations.toml"
VARIABLES = {"numbers": "xs", "number": "n", "text": "s", "words": "ws", "truth": "b"}
HINTS = {"numbers": "list[int]", "number": "int", "text": "str", "words": "list[str]", "truth": "bool"}
INPUT_NAMES = {"numbers": "a list of numbers", "number": "a number", "text": "a text", "words": "a list of words"}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = ("apple", "bear", "Cloud", "dust", "east", "Fox", "gate", "hill", "Ivy", "jam", "kite", "lemon", "moon")
CASES = 5
"""Inputs of a task's tests."""
TRIES = 20
"""Draws of inputs until outputs differ, so that a constant does not pass."""
DOCUMENT_LENGTHS, INSTRUCTION_LENGTHS = {1: 0.3, 2: 0.7}, {2: 0.5, 3: 0.5}
"""Operations of a task, with their shares."""


@dataclass(frozen=True)
class Operation:
    """One operation of `code_operations.toml`."""

    name: str
    takes: str
    gives: str
    says: tuple[str, ...]
    code: str


@dataclass(frozen=True)
class Chain:
    """Operations with their constants and chosen wordings filled in."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    """Kinds of the values from the argument to the result, one more than there are operations."""
    says: tuple[str, ...]
    codes: tuple[str, ...]
    """Expressions over `{x}`."""


@cache
def operations() -> tuple[Operation, ...]:
    """All rows of the file."""
    rows = tomllib.loads(FILE.read_text(encoding="utf-8"))["operation"]
    return tuple(Operation(**{**row, "says": tuple(row["says"])}) for row in rows)


@cache
def _taking(kind: str) -> tuple[Operation, ...]:
    return tuple(operation for operation in operations() if operation.takes == kind)


def draw_chain(length: int, draw: random.Random) -> Chain:
    """A chain of `length` operations."""
    while True:
        selection = [draw.choice([o for o in operations() if o.takes in INPUT_NAMES])]
        while len(selection) < length and _taking(selection[-1].gives):
            selection.append(draw.choice(_taking(selection[-1].gives)))
        if len(selection) == length:
            return _filled_chain(selection, draw)


def _filled_chain(selection: Sequence[Operation], draw: random.Random) -> Chain:
    says, codes = [], []
    for operation in selection:
        first, second = draw.sample(LETTERS, 2)
        constants = {"k": draw.randint(2, 99), "n": draw.randint(2, 9), "c": first, "d": second}
        says.append(draw.choice(operation.says).format(**constants))
        codes.append(operation.code.format(x="{x}", **constants))
    kinds = (selection[0].takes, *(operation.gives for operation in selection))
    return Chain(tuple(o.name for o in selection), kinds, tuple(says), tuple(codes))


def body(chain: Chain) -> str:
    """The statements of the function."""
    lines = []
    for place, code in enumerate(chain.codes):
        value = code.replace("{x}", VARIABLES[chain.kinds[place]])
        is_last = place == len(chain.codes) - 1
        lines.append(f"    return {value}" if is_last else f"    {VARIABLES[chain.kinds[place + 1]]} = {value}")
    return "\n".join(lines) + "\n"


def document_prompt(wish: str, kind: str) -> str:
    """The part of a document before the function's statements."""
    return f"# {wish}\ndef {NAME}({VARIABLES[kind]}):\n"


def instruction(chain: Chain) -> str:
    """A request that names the last operation first."""
    return f"Write {NAME} for {INPUT_NAMES[chain.kinds[0]]}: {_backwards(chain)}."


def _backwards(chain: Chain) -> str:
    return ", but first ".join(reversed(chain.says))


def program(chain: Chain) -> str:
    """The function with type hints."""
    input_kind, output_kind = chain.kinds[0], chain.kinds[-1]
    return f"def {NAME}({VARIABLES[input_kind]}: {HINTS[input_kind]}) -> {HINTS[output_kind]}:\n{body(chain)}"


def row(chain: Chain) -> dict[str, str]:
    """The chain as a row of instruction data (Alpaca's fields)."""
    return {"instruction": instruction(chain), "input": "", "output": f"```python\n{program(chain)}```"}


def task(chain: Chain, task_id: str, draw: random.Random) -> CodeTask | None:
    """The chain as a task with unit tests; None where a constant would pass them."""
    reference = program(chain)
    space: dict[str, Any] = {}
    exec(reference, space)  # needs no sandbox: this module composed the program
    cases = _cases(space[NAME], chain.kinds[0], draw)
    if not cases:
        return None
    return CodeTask(
        task_id=task_id,
        instruction=instruction(chain),
        prompt=document_prompt(_backwards(chain), chain.kinds[0]),
        preamble="",
        entry_point=NAME,
        reference=reference,
        tests="".join(f"assert {NAME}({argument!r}) == {output!r}\n" for argument, output in cases),
        kind=f"{len(chain.names)} operations",
    )


def _cases(function: Any, kind: str, draw: random.Random) -> list[tuple[Any, Any]]:
    """Inputs with what `function` returns, not always the same; empty where that cannot be had."""
    for _ in range(TRIES):
        cases = [(argument, function(argument)) for argument in (_input(kind, draw) for _ in range(CASES))]
        if len({repr(output) for _, output in cases}) > 1:
            return cases
    return []


def _input(kind: str, draw: random.Random) -> Any:
    if kind == "number":
        return draw.randint(-200, 200)
    if kind == "numbers":
        values = [draw.randint(-120, 120) for _ in range(draw.randint(3, 12))]
        return values + draw.sample(values, 2)
    words = [draw.choice([draw.choice(VOCABULARY), "".join(draw.choices(LETTERS, k=draw.randint(1, 12)))])
             for _ in range(draw.randint(3, 8))]  # fmt: skip
    return words if kind == "words" else " ".join(words)


def draw_documents(number: int, seed: int) -> list[tuple[str, str]]:
    """Documents of one and two operations, each as what comes before the statements and the statements."""
    draw = random.Random(f"documents {seed}")
    chains = [draw_chain(_length(DOCUMENT_LENGTHS, draw), draw) for _ in range(number)]
    return [(document_prompt(", then ".join(chain.says), chain.kinds[0]), body(chain)) for chain in chains]


def draw_rows(number: int, seed: int) -> list[dict[str, str]]:
    """Instruction rows of two and three operations."""
    draw = random.Random(f"instructions {seed}")
    return [row(draw_chain(_length(INSTRUCTION_LENGTHS, draw), draw)) for _ in range(number)]


def draw_tasks(number: int, seed: int) -> list[CodeTask]:
    """Tasks with unit tests, from the distribution of the rows."""
    draw = random.Random(f"tasks {seed}")
    tasks: list[CodeTask] = []
    while len(tasks) < number:
        candidate = task(draw_chain(_length(INSTRUCTION_LENGTHS, draw), draw), f"template/{len(tasks)}", draw)
        tasks += [] if candidate is None else [candidate]
    return tasks


def _length(shares: Mapping[int, float], draw: random.Random) -> int:
    return draw.choices(list(shares), weights=list(shares.values()))[0]
