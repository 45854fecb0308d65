"""What a setting can hold: null, truth values, finite numbers, texts, lists and mappings of these, within limits.

Settings come from files, command lines and programs of people who make mistakes. What is not plain (a date, a set, NaN,
a number of five thousand digits, a list that holds itself) is refused here, before anything reads it.
"""

import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

MOST_VALUES = 20_000
"""Values in one file or setting, those inside others counted."""
DEEPEST = 24
"""Levels of mappings and lists."""
LONGEST_TEXT = 4_096
"""Characters of one text: the longest path of Linux (`PATH_MAX`, linux/limits.h)."""
LARGEST = 10**15
"""Of a whole number: further than any run counts, and exact in a float."""
SHOWN_CHARACTERS = 80


def in_short(value: object) -> str:
    """A value as a message shows it: shortened, and never an error."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, str):
        value = value if len(value) <= SHOWN_CHARACTERS else value[:SHOWN_CHARACTERS] + "…"
        return repr(value)
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number with more digits than Python prints, inside
        return f"a {type(value).__name__}"
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


def require_plain(value: Any, path: str = "") -> None:
    """Check that a value is plain.

    Raises:
        ValueError: naming the part that is not by its path, the rule, and what is there.
    """
    _require(value, path, 0, [0])


def _require(value: Any, path: str, depth: int, count: list[int]) -> None:
    count[0] += 1
    where = f"{path}: " if path else ""
    if count[0] > MOST_VALUES:
        raise ValueError(f"{where}at most {MOST_VALUES:,} values in one setting; found more. Give fewer")
    if depth > DEEPEST:
        raise ValueError(f"{where}at most {DEEPEST} levels of lists and mappings; found more. Make it flatter")
    if value is None or isinstance(value, bool | BaseModel):  # a section has checked itself
        return
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ValueError(f"{where}a whole number up to {LARGEST:.0e}; found {in_short(value)}. Give a smaller one")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}a finite number; found {value}. Give a number")
    if isinstance(value, str):
        _require_text(value, where)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{where}a mapping whose keys are texts; found the key {in_short(key)}. Quote it")
            _require_text(key, where)
            _require(inner, f"{path}.{key[:SHOWN_CHARACTERS]}" if path else key, depth + 1, count)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            _require(inner, f"{path}.{number}" if path else str(number), depth + 1, count)
    elif not isinstance(value, int | float):
        kind = type(value).__name__
        raise ValueError(
            f"{where}null, true or false, a number, a text, a list or a mapping; found a {kind} ({in_short(value)}). "
            f"Quote it if a text is meant"
        )


def _require_text(text: str, where: str) -> None:
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"{where}a text of at most {LONGEST_TEXT:,} characters; found {len(text):,}. Shorten it")
    if "\0" in text:
        raise ValueError(f"{where}a text without NUL characters; found {in_short(text)}. Take them out")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}a text that UTF-8 can hold; found {in_short(text)}. Correct it") from error
