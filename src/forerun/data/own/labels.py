"""What does a label column hold: one label a row, several, or a number? Told by its values; what could be two is asked.

Lists and texts with the separator are several. Numbers with many different fractions, or more than `SCALE` different
values, are numbers; `0, 1, 2 …` are classes; other short scales of whole numbers (1 to 5 stars) could be either.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from forerun.data.own.columns import (
    DATE,
    MOSTLY,
    all_dates,
    is_empty,
    number_of,
    numbers_of,
    plain_number,
    says_nothing,
)

LabelKind = Literal["one", "several", "number"]
SCALE = 20
"""Most different values of a scale that could be classes."""
SEPARATORS = ("|", ";", ",")
AMOUNT = re.compile(r"[€$£]?\s*[+-]?\d{1,3}([,. ']?\d{3})*([.,]\d+)?\s*(%|[€$£]|[A-Za-z]{1,3})?")
CLASS_NUMBERS = re.compile(r"\d{1,3}(, ?\d{1,3})+")
MANY_PAIRS = 10
"""Texts from which it is no chance that all have their numbers in order."""
SCALE_NAMES = ("rating", "score", "stars", "grade", "points", "similarity", "age", "price")


@dataclass(frozen=True)
class LabelGuess:
    """What a label column seems to hold."""

    kind: LabelKind
    is_certain: bool
    reason: str
    """One sentence."""


def label_kind(values: Iterable[Any], separator: str, column: str = "label") -> LabelGuess:
    """What the values of a label column are; empty ones say nothing.

    Values that are lists are taken one by one, texts are cut at `separator` where that gives labels that come again.
    """
    present = [value for value in values if not says_nothing(value)]
    if any(isinstance(value, list | tuple) for value in present):
        return LabelGuess("several", True, f"{column} holds lists.")
    numbers = numbers_of(present)
    if are_class_numbers(present):
        reason = f"{column} holds whole numbers with ',' between (several, label_separator: ','), or decimal commas."
        return LabelGuess("several" if separator == "," else "number", False, reason)
    if numbers:
        return _of_numbers(numbers, column)
    texts = [str(value) for value in present]
    if separator and any(separator in text for text in texts):
        return _of_separated(texts, separator, column)
    distinct = set(texts)
    if len(distinct) > SCALE and all_amounts(distinct):
        what, remedy = "amounts", "to estimate them, write plain numbers"
        if all_dates(distinct):
            what, remedy = "dates", "to estimate when, write numbers such as the year"
        reason = f"{column} holds {len(distinct)} different {what}, such as {min(distinct)!r}: as classes, each is one"
        return LabelGuess("one", False, f"{reason} of its own; {remedy}.")
    return LabelGuess("one", True, f"{column} holds {len(distinct)} different names.")


def separator_of(values: Iterable[Any]) -> str | None:
    """What stands between several labels in one text: those that it cuts come again in other texts. None without."""
    values = list(values)
    if are_class_numbers(values):
        return ","
    texts = {str(value) for value in values if isinstance(value, str) and number_of(value) is None}
    for separator in SEPARATORS:
        counts = Counter(part.strip() for text in texts for part in text.split(separator))
        if any(separator in text for text in texts) and len(counts) <= len(texts) and max(counts.values()) > 1:
            return separator
    return None


def are_class_numbers(values: Iterable[Any]) -> bool:
    """Whether texts could be numbers of classes with commas between: `2,7`, each larger than the one before."""
    texts = [value for value in values if isinstance(value, str) and value.strip()]
    several = [text.split(",") for text in texts if CLASS_NUMBERS.fullmatch(text.strip())]
    are_whole = len(several) + sum(text.strip().isdecimal() for text in texts) == len(texts)
    are_many = len(several) >= MANY_PAIRS
    return are_whole and are_many and all(sorted(set(map(int, parts))) == [*map(int, parts)] for parts in several)


def labels_of(value: Any, kind: LabelKind, separator: str) -> tuple[str, ...]:
    """The labels in one value, as texts; for `several` sorted and each once, none where it says nothing."""
    if says_nothing(value, kind):
        return ()
    if kind == "several":
        parts = value if isinstance(value, list | tuple) else str(value).split(separator) if separator else [value]
        return tuple(sorted({label_name(part) for part in parts if not is_empty(part)}))
    if kind == "number" and isinstance(value, str):
        value = plain_number(value)
    return (label_name(value),)


def label_name(value: Any) -> str:
    """A label as text: `1` for 1.0, which Parquet makes of whole numbers beside empty cells."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def have_no_names(labels: Iterable[str]) -> bool:
    """Whether labels are whole numbers alone, whose names stand elsewhere."""
    return all(label.removeprefix("-").isdecimal() for label in labels)


def all_amounts(texts: Collection[str]) -> bool:
    """Whether nearly all texts are amounts or dates, as people write them."""
    return sum(_is_amount(text) for text in texts) >= MOSTLY * len(texts)


def _is_amount(text: str) -> bool:
    return bool(AMOUNT.fullmatch(text.strip()) or DATE.fullmatch(text.strip()))


def _of_numbers(numbers: Sequence[float], column: str) -> LabelGuess:
    distinct = sorted(set(numbers))
    name = column.rpartition(".")[2].lower()
    if any(number != int(number) for number in distinct):
        many = len(distinct) > SCALE
        reason = f"{column} holds {len(distinct)} different numbers with fractions."
        return LabelGuess("number", many, reason)
    least, most = int(distinct[0]), int(distinct[-1])
    is_consecutive = distinct == list(range(least, most + 1))
    span = f"{column} holds whole numbers from {least} to {most}"
    if is_consecutive and least == 0 and (most <= SCALE or len(numbers) >= 5 * len(distinct)):
        is_scale = most > 1 and name in SCALE_NAMES
        return LabelGuess("one", most <= SCALE and not is_scale, f"{span} without a gap, as class numbers do.")
    if len(distinct) > SCALE:
        return LabelGuess("number", True, f"{span}, {len(distinct)} different ones.")
    if len(distinct) <= 2:
        return LabelGuess("one", True, f"{column} holds {len(distinct)} different whole numbers.")
    return LabelGuess("one", False, f"{span}, which could be classes or a scale.")


def _of_separated(texts: Sequence[str], separator: str, column: str) -> LabelGuess:
    parts = [part.strip() for text in texts for part in text.split(separator)]
    comes_again = len(set(parts)) < len(parts) and len(set(parts)) <= len(set(texts)) + 1
    return LabelGuess("several", comes_again, f"some of {column} have {separator!r} between labels.")
