"""Text with labels, for classification: one label, several, or none a row; perhaps a second text beside the first.

Rows come from a table (`table_rows.py`) or ship with the package (`text_polarity.py`). Every row has one of four parts:
`train`; `selection`, by which models are chosen; `threshold`, on which decisions are tuned; `test`, looked at once.
A table's own splits are kept and its validation rows halved into the middle two; what it lacks is drawn by a hash of
the text, so that equal texts share a part and nothing depends on the order of rows. A training text that is also
judged on is dropped.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from forerun.data.table_rows import Rows, read_table
from forerun.data.text_polarity import embedded
from forerun.errors import BadData

Part = Literal["train", "selection", "threshold", "test"]
PARTS: tuple[Part, ...] = ("train", "selection", "threshold", "test")
SHARES = {"train": 0.7, "selection": 0.1, "threshold": 0.1, "test": 0.1}
"""Share of each part among rows without a split."""
VALIDATION = ("val", "valid", "validation", "dev")
HELD_OUT_OF_TRAINING = 0.15
"""Share of the training rows that stands in for validation rows where a table has none, or for test rows."""
HASH_RANGE = 2**64


@dataclass(frozen=True, slots=True)
class LabelledText:
    """One row. `labels` are numbers of the corpus's `label_names`, in order."""

    text: str
    pair: str | None
    labels: tuple[int, ...]
    part: Part

    @property
    def key(self) -> str:
        """Text that two rows share when they count as the same."""
        return " ".join(f"{self.text} \x1f {self.pair or ''}".lower().split())


@dataclass(frozen=True)
class TextCorpus:
    """Rows with the meaning of their labels."""

    name: str
    rows: tuple[LabelledText, ...]
    label_names: tuple[str, ...]
    is_multi_label: bool
    repeated: int = 0
    """Training rows dropped because their text is judged on, or occurs before."""

    def part(self, part: Part) -> tuple[LabelledText, ...]:
        """Rows of one part, in file order."""
        return tuple(row for row in self.rows if row.part == part)

    @property
    def is_paired(self) -> bool:
        """Whether rows have two texts."""
        return self.rows[0].pair is not None

    @property
    def split_hash(self) -> str:
        """16 hex digits of which text is in which part."""
        content = sorted((row.part, row.key, row.labels) for row in self.rows)
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Fields:
    """Names of a table's columns."""

    text: str = "text"
    pair: str | None = None
    label: str = "label"
    split: str = "split"
    separator: str = "|"
    """Between the labels of one row where they are text."""


@cache
def shipped_corpus(name: str) -> TextCorpus:
    """`sentence_polarity` or `movie_reviews`: English, negative 0 or positive 1 (CC BY 4.0)."""
    rows = [
        {"text": row.text, "label": "positive" if row.is_positive else "negative", "split": row.split}
        for row in embedded()
        if row.source == name
    ]
    return corpus_of(rows, Fields(), name, is_multi_label=False)


def read_corpus(source: str, fields: Fields, *, is_multi_label: bool) -> TextCorpus:
    """The corpus of a file or hub id.

    Raises:
        BadData: the table cannot be read, or a column is missing or of the wrong kind.
        MissingExtra: a package that reads it is not installed.
    """
    return corpus_of(read_table(source, fields.split), fields, source, is_multi_label=is_multi_label)


def corpus_of(rows: Rows, fields: Fields, name: str, *, is_multi_label: bool) -> TextCorpus:
    """Rows of a table as a corpus.

    Raises:
        BadData: a column is missing or of the wrong kind, there is only one label, or a part is empty.
    """
    names_per_row = [_labels(row, fields, f"{name}, row {n}", is_multi_label) for n, row in enumerate(rows, start=1)]
    label_names = tuple(sorted({label for labels in names_per_row for label in labels}))
    if len(label_names) < 2 and not (is_multi_label and label_names):
        raise BadData(f"{name}: classification needs at least two labels; found {', '.join(label_names) or 'none'}.")
    numbers = {label: number for number, label in enumerate(label_names)}
    split_counts = Counter(_table_split(row, fields, f"{name}, row {n}") for n, row in enumerate(rows, start=1))
    candidates = []
    for number, (row, labels) in enumerate(zip(rows, names_per_row, strict=True), start=1):
        where = f"{name}, row {number}"
        text, pair = _text(row, fields.text, where), None if fields.pair is None else _text(row, fields.pair, where)
        plain = LabelledText(text, pair, tuple(sorted(numbers[label] for label in labels)), "train")
        candidates.append(replace(plain, part=_part(_table_split(row, fields, where), plain.key, split_counts)))
    unique_rows = _without_repeats(candidates)
    for part in PARTS:
        if not any(row.part == part for row in unique_rows):
            raise BadData(f"{name}: the part {part} has no rows; found {len(unique_rows)} rows in all. Give more rows.")
    return TextCorpus(
        name, tuple(unique_rows), label_names, is_multi_label, repeated=len(candidates) - len(unique_rows)
    )


def with_folds(corpus: TextCorpus, folds: int, fold: int) -> TextCorpus:
    """The corpus with `selection` being fold `fold` of all its training and selection rows; one fold changes nothing.

    A row's fold is a hash of its text: the same for every trial, seed and size.
    """
    if folds == 1:
        return corpus
    rows = []
    for row in corpus.rows:
        if row.part in ("train", "selection"):
            is_selection = int(uniform("fold", row.key) * folds) == fold
            row = replace(row, part="selection" if is_selection else "train")
        rows.append(row)
    return replace(corpus, rows=tuple(rows))


def uniform(purpose: str, key: str) -> float:
    """A number in [0, 1) that depends on nothing but the two texts."""
    return int.from_bytes(hashlib.sha256(f"{purpose}:{key}".encode()).digest()[:8]) / HASH_RANGE


def _part(table_split: str | None, key: str, split_counts: Mapping[str | None, int]) -> Part:
    """Part of a row that its table puts into `table_split`."""
    if table_split is None:
        place = uniform("part", key)
        for part in PARTS:
            place -= SHARES[part]
            if place < 0:
                return part
        return "test"
    if table_split == "test":
        return "test"
    if table_split == "val":
        return "selection" if uniform("half", key) < 0.5 else "threshold"
    place = uniform("held out", key)
    if not split_counts.get("test"):
        if place < HELD_OUT_OF_TRAINING:
            return "test"
        place -= HELD_OUT_OF_TRAINING
    if not split_counts.get("val") and place < HELD_OUT_OF_TRAINING:
        return "selection" if place < HELD_OUT_OF_TRAINING / 2 else "threshold"
    return "train"


def _table_split(row: Mapping[str, Any], fields: Fields, where: str) -> str | None:
    """The split that the table states: train, val or test; None without one."""
    value = row.get(fields.split)
    if value is None:
        return None
    text = str(value).lower()
    if text in VALIDATION:
        return "val"
    if text in ("train", "test"):
        return text
    raise BadData(f"{where}: the split is train, test or one of {', '.join(VALIDATION)}; found {value!r}.")


def _without_repeats(rows: Iterable[LabelledText]) -> list[LabelledText]:
    """Rows without training texts that are judged on or came before."""
    rows = list(rows)
    keys = {row.key for row in rows if row.part != "train"}
    unique_rows = []
    for row in rows:
        if row.part == "train":
            if row.key in keys:
                continue
            keys.add(row.key)
        unique_rows.append(row)
    return unique_rows


def _text(row: Mapping[str, Any], field: str, where: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        raise BadData(
            f"{where}: the column {field!r} holds a text; found {value!r} among the columns {', '.join(row)}. "
            f"Name it with --set recipe.text_field=… or recipe.pair_field=…"
        )
    return value


def _labels(row: Mapping[str, Any], fields: Fields, where: str, is_multi_label: bool) -> Sequence[str]:
    value = row.get(fields.label)
    if value is None:
        raise BadData(
            f"{where}: the column {fields.label!r} holds the label; found the columns {', '.join(row)}. "
            f"Name it with --set recipe.label_field=…"
        )
    if is_multi_label:
        several = value if isinstance(value, list) else str(value).split(fields.separator)
        return sorted({str(label).strip() for label in several if str(label).strip()})
    if isinstance(value, list):
        raise BadData(f"{where}: one label a row; found {value!r}. Set recipe.task to multi-label.")
    return [str(value)]
