"""Human-written against AI-written source code: rows, the file format, the splits, the check that no group leaks.

A file is JSON lines, plain or gzipped. Each row has `id`, `code`, `language` (python, java, cpp), `label` (human or
ai), `group` (rows that must stay in one split: same task, same rare function, near-duplicates), and may have `split`
(train, val, test), `source`, `generator` and `task`. Further keys are ignored. Where no row has a `split`, groups are
spread by the hash of their name (70 / 12 / 18 %).

`embedded()` reads the rows shipped with the package; `ATTRIBUTION.md` says whose they are. Language, source
and generator are for slicing results and holding rows out, never input of a model.

**Not covered:** finding groups; two tasks that only a person would call the same stay two groups.
"""

import gzip
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from forerun.errors import BadData

Label = Literal["human", "ai"]
Language = Literal["python", "java", "cpp"]
Split = Literal["train", "val", "test"]

SPLIT_SHARES: dict[str, float] = {"train": 0.70, "val": 0.12, "test": 0.18}
"""Shares of the groups when a file brings no splits; those of the shipped rows, rounded."""

_EMBEDDED = Path(__file__).parent / "code_authorship.jsonl.gz"
_CHOICES: dict[str, tuple[str, ...]] = {"label": get_args(Label), "language": get_args(Language)}
_OPTIONAL = {"source": "unknown", "generator": "unknown", "task": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSample:
    """One source file and who wrote it."""

    id: str
    code: str = field(repr=False)
    language: Language
    label: Label
    group: str
    split: Split
    source: str
    generator: str
    task: str | None

    @property
    def is_ai(self) -> bool:
        """Whether a language model wrote it."""
        return self.label == "ai"

    @property
    def family(self) -> str:
        """The maker of the generator, `human` for people: the part of the name before the slash, in lower case."""
        return self.generator.partition("/")[0].lower()


@dataclass(frozen=True)
class CodeCorpus:
    """Samples in file order, every group in one split."""

    samples: tuple[CodeSample, ...]

    def __post_init__(self) -> None:
        check_group_disjoint(self.samples)

    def split(self, name: Split) -> tuple[CodeSample, ...]:
        """The samples of one split."""
        return tuple(sample for sample in self.samples if sample.split == name)

    def hold_out(self, attribute: Literal["source", "language", "family"], value: str) -> "CodeCorpus":
        """Train and validate without `value`, test on it alone; a family of generators also on the human test rows.

        All held-out rows become test rows; other rows of their groups, and the other test rows, are left out.

        Raises:
            BadData: no row has that value.
        """
        held_out = [sample for sample in self.samples if getattr(sample, attribute) == value]
        if not held_out:
            values = ", ".join(sorted({getattr(sample, attribute) for sample in self.samples}))
            raise BadData(f"{attribute}: rows to hold out are needed; found none with {value!r}. Known: {values}.")
        groups = {sample.group for sample in held_out}  # their other rows would leak into training
        rest = [s for s in self.samples if s.group not in groups]
        test = [replace(sample, split="test") for sample in held_out]
        if attribute == "family":
            test += [sample for sample in rest if sample.split == "test" and not sample.is_ai]
        return CodeCorpus(tuple([s for s in rest if s.split != "test"] + test))


def embedded() -> CodeCorpus:
    """The rows shipped with the package."""
    return from_path(_EMBEDDED)


def from_path(path: str | Path) -> CodeCorpus:
    """The rows of a JSON-lines file, gzipped where the name ends in `.gz`.

    Raises:
        BadData: the file cannot be read, a row breaks the format, or a group is in two splits.
    """
    path = Path(path)
    try:
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = text.decode("utf-8").split("\n")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BadData(
            f"{path}: JSON lines in UTF-8, gzipped if the name ends in .gz; reading failed: {error}."
        ) from error
    rows = [_parse(line, f"{path.name} line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise BadData(f"{path}: at least one row is needed; found none.")
    return CodeCorpus(tuple(_with_splits(rows, path.name)))


def check_group_disjoint(samples: Iterable[CodeSample]) -> None:
    """Refuse samples of which a group is in two splits.

    Raises:
        BadData: names the group and both splits.
    """
    first_of_group: dict[str, CodeSample] = {}
    for sample in samples:
        first = first_of_group.setdefault(sample.group, sample)
        if first.split != sample.split:
            raise BadData(
                f"group {sample.group}: all its rows belong in one split; found {first.id} in {first.split} and "
                f"{sample.id} in {sample.split}. Move one, or leave `split` out to have groups spread."
            )


def split_of(group: str) -> Split:
    """The split of a group in a file without splits: a fixed function of its name."""
    position = int(hashlib.sha256(group.encode()).hexdigest()[:8], 16) / 16**8
    if position < SPLIT_SHARES["train"]:
        return "train"
    return "val" if position < SPLIT_SHARES["train"] + SPLIT_SHARES["val"] else "test"


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise BadData(f"{where}: one JSON object a line; found invalid JSON: {error}.") from error
    if not isinstance(row, dict):
        raise BadData(f"{where}: one JSON object a line; found {type(row).__name__}.")
    for key in ("id", "code", "language", "label", "group"):
        if not isinstance(row.get(key), str) or not row[key]:
            raise BadData(f"{where}: field {key} must be a text that is not empty; found {row.get(key)!r}.")
    for key, allowed in _CHOICES.items():
        if row[key] not in allowed:
            raise BadData(f"{where}: field {key} must be one of {', '.join(allowed)}; found {row[key]!r}.")
    return row


def _with_splits(rows: list[dict[str, Any]], name: str) -> Iterable[CodeSample]:
    splits = [row.get("split") for row in rows]
    has_splits = any(split is not None for split in splits)
    for number, (row, split) in enumerate(zip(rows, splits, strict=True), 1):
        if has_splits and split not in SPLIT_SHARES:
            raise BadData(
                f"{name} row {number}: field split must be train, val or test, in every row or in none; "
                f"found {split!r}."
            )
        optional = {key: row.get(key) or default for key, default in _OPTIONAL.items()}
        required = {key: row[key] for key in ("id", "code", "language", "label", "group")}
        split_name: Any = split if has_splits else split_of(row["group"])
        yield CodeSample(**required, **optional, split=split_name)
