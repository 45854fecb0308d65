"""What does a column of somebody's rows hold? Told by its values, since names are a matter of taste.

A cell of a CSV that holds a list, as JSON (`["B-PER", "O"]`) or as Python prints it, counts as the list. A dot in a
column's name reaches into a mapping, and of a mapping's list to its first: `translation.en`, `answers.text.0`.
"""

import json
import math
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from forerun.data.own.python_lists import python_list
from forerun.data.own.spans import spans_of

Row = Mapping[str, Any]
ColumnKind = Literal["empty", "text", "number", "messages", "turns", "mapping", "texts", "numbers", "mixed"]
"""`messages` lists of role and content, `turns` lists of from and value, `texts` and `numbers` lists of those."""
YES, NO = ("1", "1.0", "true", "yes"), ("0", "0.0", "false", "no")
"""Words of a column that says yes or no."""
SPLIT_WORDS = {
    "train": "train", "training": "train", "validation": "val", "valid": "val", "val": "val", "dev": "val",
    "eval": "val", "test": "test", "testing": "test",
}  # fmt: skip
"""Words for a part of the data → the part."""
UNSEEN = " \t\r\n\xa0\u2028\u2029\u3000\u200b\u200c\u200d\u2060\ufeff"
"""Characters that show nothing; `str.strip` leaves those of no width."""
DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,(\d{1,2}|\d{4,})\s*")
"""A number as much of Europe writes it; three digits behind a comma could be thousands."""
GROUPED = re.compile(r"\s*[+-]?\d{1,3}(?:(?:\.\d{3})+,|(?:,\d{3})+\.|(?:[ \xa0\u202f'\u2019]\d{3})+[.,])\d+\s*")
"""A number with marks between thousands and another one before its fraction: 1.180,31 and 1,180.31, 1 180,31."""
NUMBER_WORDS = {"nan", "inf", "-inf", "+inf", "infinity", "-infinity", "+infinity"}
EMPTY_WORDS = {"nan", "<na>", "#n/a", "#na"}
"""Words that programs write for an empty cell (pandas, R, Excel): no label is called so."""
DATE = re.compile(r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{2,4})([T ].*)?")
"""A day, as programs and people write it, perhaps with a time."""
MOSTLY = 0.9
"""Share of dates, or of amounts, from which a column is one of them."""
MOST_CLASS_NUMBERS = 20
FIRST = ".0"
"""End of a column's name that means the first of a list."""
NO_NUMBER_WORDS = EMPTY_WORDS | {"na", "n/a", "null", "none", "missing", "-", "?"}
"""Words that stand for an empty cell among numbers; among names they could be one."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a sample of rows."""

    name: str
    kind: ColumnKind
    values: int
    """Rows of the sample in which it is not empty."""
    distinct: int
    """Different values among them."""
    mean_length: float
    """Characters of its texts; 0 where it holds none."""
    is_full: bool
    """Whether every row of the sample has a value."""
    mean_words: float = 0.0
    """Words of its texts, as blanks tell them; 0 where it holds none."""
    are_running: bool = False
    """Whether its values are whole numbers of which none comes again, as numbers of rows are."""
    has_tools: bool = False
    """Whether some of its values are lists of descriptions of tools."""
    is_message: bool = False
    """Whether each of its values is one message."""
    are_flags: bool = False
    """Whether every row that has a value says yes or no: 1 or 0, true or false."""
    are_spans: bool = False
    """Whether all its values name places in a text and what they are."""
    are_dates: bool = False
    """Whether nearly all its values are dates."""
    are_parts: bool = False
    """Whether every row has a word for a part of the data, `train`, `dev`, `test`, and training is among them."""


def value_at(row: Row, column: str) -> Any:
    """The value of a column, or None where the row has none; a list or mapping raw as JSON text is read."""
    value = row.get(column)
    if value is None and "." in column and column not in row:
        outer, _, inner = column.partition(".")
        mapping = value_at(row, outer)
        if isinstance(mapping, Mapping):
            return _first(mapping, inner) if inner.endswith(FIRST) else value_at(mapping, inner)
        return None
    return structure_of(value)


def _first(mapping: Row, column: str) -> Any:
    values = value_at(mapping, column.removesuffix(FIRST))
    return values[0] if isinstance(values, list | tuple) and values else None


def structure_of(value: Any) -> Any:
    """A list or mapping in place of its text, JSON or Python's; anything else as it is."""
    if isinstance(value, str) and value[:1] in "[{" and value.rstrip()[-1:] in ("]", "}"):
        try:
            read = json.loads(value)
        except (json.JSONDecodeError, RecursionError):
            read = python_list(value)
        return read if isinstance(read, list | dict) else value
    return value


def is_empty(value: Any) -> bool:
    """Whether a value says nothing: None, a NaN, an empty list, or text of white space."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return True
    if isinstance(value, str):
        return not value.strip() or (not value.isascii() and not value.strip(UNSEEN))
    return isinstance(value, list | tuple | dict) and not value


def says_nothing(value: Any, kind: str = "") -> bool:
    """Whether a label is empty, or a word for that; of the kind `number` also words that could be names elsewhere."""
    words = NO_NUMBER_WORDS if kind == "number" else EMPTY_WORDS
    return is_empty(value) or (isinstance(value, str) and value.strip().lower() in words)


def are_tools(value: Any) -> bool:
    """Whether a value is a list of mappings with a `name` each, of their own or in their `function`, as tools have."""
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(isinstance(tool, Mapping) and is_function(tool.get("function", tool)) for tool in value)


def content_of(message: Mapping[str, Any]) -> Any:
    """What a message says: its `content` (OpenAI), `value` (ShareGPT) or `parts` (Gemini); texts in a list as one."""
    content = message.get("content", message.get("value", message.get("parts")))
    if isinstance(content, list) and all(isinstance(p, Mapping) and isinstance(p.get("text"), str) for p in content):
        return "".join(part["text"] for part in content)
    return content


def is_function(value: Any) -> bool:
    """Whether a value describes or calls a function: a mapping with a name."""
    return isinstance(value, Mapping) and isinstance(value.get("name"), str) and bool(value["name"].strip())


def numbers_of(values: Sequence[Any]) -> list[float]:
    """The numbers that all values are; none where others are among them, but for words of an empty cell or infinity.

    Such words count beside amounts alone (fractions, or many): beside 0, 1, 2 they could name a class.
    """
    numbers = [number for value in values if (number := number_of(value)) is not None]
    if len(numbers) == len(values):
        return numbers
    are_amounts = any(not number.is_integer() for number in numbers) or len(set(numbers)) > MOST_CLASS_NUMBERS
    others = (value for value in values if number_of(value) is None)
    return numbers if are_amounts and all(_stands_for_number(value) for value in others) else []


def _stands_for_number(value: Any) -> bool:
    word = str(value).strip().lower() if isinstance(value, str | float) else ""
    return word in NO_NUMBER_WORDS | NUMBER_WORDS


def number_of(value: Any) -> float | None:
    """The finite number that a value is or spells; None for anything else, truth values included."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value) if abs(value) <= sys.float_info.max else None
    if isinstance(value, str) and value.strip().lower() not in NUMBER_WORDS and "_" not in value:
        try:
            return float(plain_number(value))
        except ValueError:
            return None
    return None


def plain_number(text: str) -> str:
    """The text with a point before the fraction and no thousands apart, if it is a number of one reading."""
    if GROUPED.fullmatch(text):
        *groups, fraction = re.split(r"[.,]", text)
        return f"{re.sub(r'[^0-9+-]', '', ''.join(groups))}.{fraction}"
    return text.replace(",", ".") if DECIMAL_COMMA.fullmatch(text) else text


def columns_of(rows: Iterable[Row]) -> dict[str, Column]:
    """Columns of a sample, in the order in which they first come up; mappings also give their inner columns."""
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {
        name: _column(name, [value_at(row, name) for row in rows], [row.get(name) for row in rows]) for name in names
    }
    for name in [name for name, column in columns.items() if column.kind == "mapping"]:
        inner_names = dict.fromkeys(key for row in rows for key in (value_at(row, name) or {}))
        for key in inner_names:
            values = [value_at(row, f"{name}.{key}") for row in rows]
            columns[f"{name}.{key}"] = _column(f"{name}.{key}", values, values)
            if columns[f"{name}.{key}"].kind == "texts":
                firsts = [value_at(row, f"{name}.{key}{FIRST}") for row in rows]
                columns[f"{name}.{key}{FIRST}"] = _column(f"{name}.{key}{FIRST}", firsts, firsts)
    return columns


def _column(name: str, values: Sequence[Any], raw: Sequence[Any]) -> Column:
    """A column of `values`; `raw` are the same before lists in text were read."""
    present = [value for value in values if not is_empty(value)]
    words = [str(value).strip().lower() for value in present]
    texts = [value for value in raw if isinstance(value, str) and value.strip()]
    numbers = numbers_of(present)
    return Column(
        name=name,
        kind="number" if numbers else _common_kind({*map(_kind, present)}, len(texts) == len(present)),
        values=len(present),
        distinct=len({json.dumps(value, sort_keys=True, default=str) for value in present}),
        mean_length=sum(map(len, texts)) / len(texts) if texts else 0.0,
        is_full=len(present) == len(values),
        mean_words=sum(len(text.split()) for text in texts) / len(texts) if texts else 0.0,
        are_running=len(set(numbers)) == len(present) > 1 and all(map(float.is_integer, numbers)),
        has_tools=any(map(are_tools, present)),
        is_message=bool(present) and all(isinstance(value, Mapping) and content_of(value) for value in present),
        are_spans=bool(present) and all(spans_of(value) is not None for value in present),
        are_dates=bool(present) and all_dates([value for value in present if isinstance(value, str)], len(present)),
        are_parts=len(words) == len(values) and _are_parts(words),
        are_flags=bool(words) and all(word in (*YES, *NO, *EMPTY_WORDS) for word in words),
    )


def all_dates(texts: Collection[str], of: int | None = None) -> bool:
    """Whether nearly all texts, or nearly all `of` values, are dates."""
    dates = sum(DATE.fullmatch(text.strip()) is not None for text in texts)
    return dates > 0 and dates >= MOSTLY * (len(texts) if of is None else of)


def _are_parts(words: Sequence[str]) -> bool:
    parts = {SPLIT_WORDS.get(word) for word in words}
    return "train" in parts and None not in parts


def _common_kind(kinds: set[ColumnKind], are_texts: bool) -> ColumnKind:
    """The kind of a column with values of `kinds`; texts among which some look like lists are texts."""
    if len(kinds) == 1:
        return next(iter(kinds))
    if not kinds:
        return "empty"
    return "text" if kinds <= {"text", "number"} or are_texts else "mixed"


def _kind(value: Any) -> ColumnKind:
    if isinstance(value, bool) or number_of(value) is not None:
        return "number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, Mapping):
        return "mapping"
    if isinstance(value, list | tuple):
        first = value[0]
        if isinstance(first, Mapping):
            return "messages" if "role" in first else "turns" if "from" in first else "mixed"
        if isinstance(first, str):
            return "texts"
        return "numbers" if isinstance(first, int | float) else "mixed"
    return "mixed"
