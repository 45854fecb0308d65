"""Cleaning of instruction data before training: duplicates, rows of the test and answers without code are removed.

- *duplicates*: the same request after lower-casing and collapsing white space and punctuation, but for signs that
  compute or compare; the first stays;
- *contaminated*: a row shares 13 words in a row with an evaluation task's texts (as GPT-3 did, Brown et al. 2020,
  appendix C), its request has fewer, but at least 7, and stands whole in a task's texts (a third of MBPP's tasks
  have 7 to 12 words), or it defines the function that a task asks for under a name that is not everyday;
- *without request*: nothing is asked;
- *unparsable*: the code of the answer is no Python, or there is none.

Each row is counted under the first of the four that it breaks. The hash names the split that is left.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forerun.data.instructions import Instruction
from forerun.recipes.code_lora.data.python_code import code_of, parses
from forerun.recipes.code_lora.data.tasks import CodeTask

SHINGLE = 13
"""Words in a row that make a row suspect."""
SHORTEST_REQUEST = 7
"""Fewest words of a whole request that counts as a task's, as in MBPP's shortest; shorter ones say too little."""
EVERYDAY_NAMES = frozenset({"solve", "solution", "main", "add", "test", "func", "function", "run"})
"""Names that say nothing about where a function comes from."""
WORD = re.compile(r"\w+")
WORD_OR_SIGN = re.compile(r"\w+|[+*/%<>=&|^~]+")
"""`x < y` and `x > y` are two requests."""


@dataclass(frozen=True)
class Cleaned:
    """Rows that stay, and how many were removed for which reason."""

    rows: tuple[Instruction, ...]
    input_rows: int
    duplicates: int
    contaminated: int
    unparsable: int
    without_request: int = 0

    @property
    def unparsable_share(self) -> float:
        """Share that does not parse, among rows with a request that are neither duplicates nor contaminated."""
        rest = self.input_rows - self.duplicates - self.contaminated - self.without_request
        return self.unparsable / rest if rest else 0.0


def clean(rows: Sequence[Instruction], tasks: Sequence[CodeTask]) -> Cleaned:
    """The rows that may be trained on when `tasks` are what is tested."""
    forbidden, names = _shingles(tasks), {task.entry_point for task in tasks} - EVERYDAY_NAMES
    keys: set[str] = set()
    retained: list[Instruction] = []
    duplicates = contaminated = unparsable = without_request = 0
    for row in rows:
        if not row.request:
            without_request += 1
            continue
        key = " ".join(WORD_OR_SIGN.findall(row.request.lower())) or row.request
        if key in keys:
            duplicates += 1
            continue
        keys.add(key)
        if is_contaminated(row, forbidden, names):
            contaminated += 1
        elif not parses(code_of(row.output)):
            unparsable += 1
        else:
            retained.append(row)
    return Cleaned(tuple(retained), len(rows), duplicates, contaminated, unparsable, without_request)


def normalised(text: str) -> str:
    """Words in lower case, one blank between them."""
    return " ".join(WORD.findall(text.lower()))


def shingles(text: str) -> set[tuple[str, ...]]:
    """Every run of `SHINGLE` words."""
    return _runs(WORD.findall(text.lower()), SHINGLE)


def _runs(words: Sequence[str], length: int) -> set[tuple[str, ...]]:
    return {tuple(words[place : place + length]) for place in range(len(words) - length + 1)}


def _shingles(tasks: Iterable[CodeTask]) -> set[tuple[str, ...]]:
    """Word runs of every task's request and reference; tests are left out, since numbers in a row occur anywhere."""
    runs: set[tuple[str, ...]] = set()
    for task in tasks:
        words = WORD.findall(task.instruction.lower())
        runs.update(shingles(task.reference), *(_runs(words, size) for size in range(SHORTEST_REQUEST, SHINGLE + 1)))
    return runs


def is_contaminated(row: Instruction, forbidden: set[tuple[str, ...]], names: set[str]) -> bool:
    """Whether a row shares a run of words, a short request or a function's name with the evaluation."""
    if not shingles(row.request).isdisjoint(forbidden) or not shingles(row.output).isdisjoint(forbidden):
        return True
    if tuple(WORD.findall(row.request.lower())) in forbidden:
        return True
    return any(f"def {name}(" in row.output for name in names)


def split_rows(rows: Sequence[Instruction], held_out: float) -> tuple[list[Instruction], list[Instruction]]:
    """Training and held-out rows; a row's place is a function of its request alone, whatever the other rows are."""
    train, test = [], []
    for row in rows:
        digest = hashlib.sha256(normalised(row.request).encode()).digest()
        (test if int.from_bytes(digest[:8], "big") / 2**64 < held_out else train).append(row)
    return train, test


def split_hash(train: Sequence[Instruction], test: Sequence[Instruction]) -> str:
    """16 hex digits of the rows of both parts, in order."""
    content = [[[row.request, row.output] for row in part] for part in (train, test)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
