"""Rows of JSON lines or of one JSON list, one at a time: a list of gigabytes takes the memory of its longest row."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from forerun.data.own.columns import SPLIT_WORDS, Row
from forerun.data.own.repairs import Repairs
from forerun.data.own.text_lines import LONGEST_LINE, TextLines, text_pieces
from forerun.errors import BadData

BLANKS = " \t\r\n"
DATA = "data"
"""The key of the rows in files that are one object."""
WORDS = {"tokens", "words"}
"""Columns whose lists make up one row."""
LETTER = re.compile(f"[^{BLANKS}]")


def is_json_list(path: Path) -> bool:
    """Whether the first letter of the file is `[`.

    Raises:
        BadData: it cannot be read.
    """
    for piece in text_pieces(path, Repairs(("encoding",))):
        if text := piece.lstrip(BLANKS):
            return text[0] == "["
    return False


def json_line_rows(path: Path, repairs: Repairs) -> Iterator[tuple[int, Row]]:
    """Each row of JSON lines with the byte at which it begins.

    Raises:
        BadData: a line is no JSON object and `repairs` does not allow it.
    """
    lines, start = TextLines(path, repairs), 0
    for line in lines:
        if line.strip():
            row = _object(line)
            if isinstance(row, dict):
                yield start, row
            else:
                rule = f"must be a JSON object on one line; found {row}."
                if lines.number == 1 and line.strip() in "{":
                    rule += " A file with one object over many lines is no list of rows: give [{…}, {…}]."
                repairs.allow("broken-lines", f"{path}, line {lines.number}", rule)
        start = lines.position


def rows_of_object(path: Path, repairs: Repairs) -> list[Row]:
    """Rows of a file that is one object, read whole, so with the limit of a line; none of any other file.

    One list of them, as `{"data": […]}`; lists named by parts, as `{"train": […], "test": […]}`; or columns, as pandas
    writes them. Articles of SQuAD become a row a question, with its context.
    """
    pieces = text_pieces(path, repairs)
    text = next(pieces, "")
    first, _, rest = text.lstrip(BLANKS).partition("\n")
    if not first.startswith("{") or (rest.strip() and isinstance(_object(first), dict)):
        return []
    text += _more(LONGEST_LINE - len(text), pieces) if len(text) < LONGEST_LINE else ""
    whole = _object(text) if len(text) <= LONGEST_LINE else ""
    if not isinstance(whole, dict) or any(map(_is_chat, whole.values())):
        return []
    if table := _rows_of_parts(whole) or _rows_of_columns(whole):
        return table
    lists = [value for value in whole.values() if isinstance(value, list) and len(value) > 1]
    if DATA in whole or len(lists) != 1:
        lists = [whole[DATA]] if isinstance(whole.get(DATA), list) else []
    rows = [row for rows in lists for row in rows]
    if not all(isinstance(row, dict) for row in rows):
        return []
    return [question for article in rows for question in _questions(article)]


def _rows_of_parts(whole: Row) -> list[Row]:
    """Rows of lists that are named by parts of the data, each with its part under `split`."""
    are_parts = all(name.lower() in SPLIT_WORDS and isinstance(rows, list) for name, rows in whole.items())
    if not are_parts or not all(isinstance(row, dict) for rows in whole.values() for row in rows):
        return []
    return [{**row, "split": row.get("split", name)} for name, rows in whole.items() for row in rows]


def _rows_of_columns(whole: Row) -> list[Row]:
    """Rows of columns of one size, as pandas writes them: values by index, lists, or names apart from the values."""
    if set(whole) in ({"columns", "data"}, {"columns", "index", "data"}):
        return _rows_of_split(whole["columns"], whole["data"])
    columns = list(whole.values())
    if len(columns) < 2 or WORDS & set(whole):
        return []
    if _are_alike(columns):
        return _rows_of_index(whole)
    if any(isinstance(column, list) and all(isinstance(value, dict) for value in column) for column in columns):
        return []  # such lists are rows, several of them
    if all(isinstance(column, list) and len(column) == len(columns[0]) > 1 for column in columns):
        return [dict(zip(whole, values, strict=True)) for values in zip(*columns, strict=True)]
    return []


def _rows_of_split(names: Any, data: Any) -> list[Row]:
    """Rows of values beside the names of their columns; none where they are something else."""
    if not isinstance(names, list) or not isinstance(data, list) or not all(isinstance(name, str) for name in names):
        return []
    if len(set(names)) < len(names) or not all(isinstance(row, list) and len(row) == len(names) for row in data):
        return []
    return [dict(zip(names, row, strict=True)) for row in data]


def _rows_of_index(whole: Row) -> list[Row]:
    """Rows of columns by index, or of records by what names them: `{"a1": {"text": …}, "a2": …}`.

    Numbers are an index; else there are more rows than columns. None where neither tells.
    """
    inner = next(iter(whole.values()))
    outer_is_index, inner_is_index = (all(map(str.isdecimal, keys)) for keys in (whole, inner))
    if outer_is_index == inner_is_index:
        outer_is_index, inner_is_index = len(whole) > len(inner), len(whole) < len(inner)
    if inner_is_index:
        return [{name: column[key] for name, column in whole.items()} for key in inner]
    if outer_is_index:
        return [{**({} if "id" in record else {"id": key}), **record} for key, record in whole.items()]
    return []


def _questions(row: Row) -> Iterator[Row]:
    """The questions of an article of SQuAD; any other row as it is."""
    if not isinstance(row.get("paragraphs"), list):
        yield row
        return
    for paragraph in _objects(row, "paragraphs"):
        for question in _objects(paragraph, "qas"):
            answers = [answer.get("text") for answer in _objects(question, "answers")]
            yield {
                "id": question.get("id"), "title": row.get("title"), "context": paragraph.get("context"),
                "question": question.get("question"), "answers": {"text": answers},
            }  # fmt: skip


def _objects(row: Row, name: str) -> list[Row]:
    values = row.get(name)
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def single_objects(path: Path, rows: Iterator[Row]) -> Iterator[Row]:
    """The rows, unless they are one object that holds a table in a way that is not read.

    Raises:
        BadData: they are.
    """
    first, second = next(rows, None), next(rows, None)
    if first is not None and second is None and (inside := _table_inside(first)):
        raise BadData(
            f"{path}: must hold one JSON object a row; found one object with {inside}. Write its rows as a list, or "
            f"one a line: pandas.DataFrame(…).to_json('rows.jsonl', orient='records', lines=True)."
        )
    return chain((row for row in (first, second) if row is not None), rows)


def _table_inside(row: Row) -> str:
    """What of one object is a table, in words; empty where nothing is."""
    if any(_is_chat(value) for value in row.values()) or WORDS & set(row):
        return ""
    for name, value in row.items():
        for kind, words in ((Mapping, "objects"), (list, "lists")):
            if isinstance(value, list) and len(value) > 1 and all(isinstance(each, kind) for each in value):
                return f"a list of {len(value):,} {words} under {name!r}"
    columns = list(row.values())
    if len(row) > 1 and _are_alike(columns):
        return f"{len(columns[0]):,} values under each of {', '.join(row)}, which can be rows or columns"
    return ""


def _are_alike(values: list[Any]) -> bool:
    """Whether all are objects with the same names, several of them."""
    return all(isinstance(value, Mapping) and len(value) > 1 and value.keys() == values[0].keys() for value in values)


def _is_chat(value: Any) -> bool:
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, Mapping) and bool({"role", "from"} & set(first))


def json_list_rows(path: Path, repairs: Repairs) -> Iterator[Row]:
    """Each row of one JSON list.

    Raises:
        BadData: the list is broken: what follows the break cannot be told apart, so no repair is for it.
    """
    pieces, decoder, number = text_pieces(path, repairs), json.JSONDecoder(object_pairs_hook=_each_key_once), 0
    text, at = _next_letter("", 0, pieces)
    at += 1  # the bracket by which lists are known
    while True:
        text, at = _next_letter(text, at, pieces)
        if text[at : at + 1] == "]":
            return
        try:
            row, at = decoder.raw_decode(text, at)
        except _RepeatedKey as error:
            raise BadData(f"{path}, row {number + 1}: names each field once; found {error}. Correct it.") from error
        except json.JSONDecodeError as error:
            more = _more(len(text) - at, pieces) if len(text) - at <= LONGEST_LINE else ""
            if more:
                text, at = text[at:] + more, 0
                continue
            raise BadData(
                f"{path}, row {number + 1}: must be one JSON list of objects; found {error.msg} {error.pos - at} "
                f"characters into the row. Correct it, or write one object a line."
            ) from error
        number += 1
        match row:
            case [str(first), dict(annotations)]:  # as spaCy 2 has them
                row = {"text": first, **annotations}
        if not isinstance(row, dict):
            raise BadData(
                f"{path}, row {number}: each row is a JSON object; found {type(row).__name__} {str(row)[:40]}. Give "
                f'its values names, as in a text and its label: {{"text": …, "label": …}}.'
            )
        yield row
        text, at = _next_letter(text, at, pieces)
        if text[at : at + 1] not in (",", "]"):
            raise BadData(
                f"{path}, after row {number}: a comma or the list's end; found {text[at:][:20]!r}. Correct it."
            )
        at += text[at] == ","


def _next_letter(text: str, at: int, pieces: Iterator[str]) -> tuple[str, int]:
    """The text, or the next one, and where its next letter is; at its end where none is left."""
    while True:
        match = LETTER.search(text, at)
        if match is not None:
            return text, match.start()
        text, at = next(pieces, ""), 0
        if not text:
            return "", 0


def _more(size: int, pieces: Iterator[str]) -> str:
    """At least `size` more characters while there are any: what is not whole yet is tried again from its beginning."""
    parts: list[str] = []
    while sum(map(len, parts)) < max(size, 1) and (piece := next(pieces, "")):
        parts.append(piece)
    return "".join(parts)


class _RepeatedKey(ValueError):
    """A field that an object has twice."""


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of its fields. Python alone would take the last of two that are called alike."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise _RepeatedKey(f"the field {name!r} twice")
    return fields


def _object(line: str) -> Row | str:
    """The object of a line, or what is there instead."""
    try:
        row = json.loads(line, object_pairs_hook=_each_key_once)
    except _RepeatedKey as error:
        return str(error)
    except (json.JSONDecodeError, RecursionError) as error:
        return _reason(error) if isinstance(error, json.JSONDecodeError) else "too many brackets"
    return row if isinstance(row, dict) else f"{type(row).__name__} {line.strip()[:40]}"


def _reason(error: json.JSONDecodeError) -> str:
    if error.msg == "Extra data":
        return f"more after the object, at character {error.pos} (one object a line, no commas between them)"
    quotes = " (single quotes, as Python prints; json.dumps writes double ones)" if error.doc[:2] == "{'" else ""
    return f"{error.msg} at character {error.pos}{quotes}"
