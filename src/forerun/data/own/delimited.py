"""Rows of a CSV file, one at a time with the byte at which each begins; the delimiter is told by the first rows."""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from forerun.data.own.columns import Row
from forerun.data.own.repairs import Repairs
from forerun.data.own.text_lines import LONGEST_LINE, TextLines
from forerun.errors import BadData

DELIMITERS = (",", ";", "\t", "|")
SNIFFED = 50
"""Lines by which the delimiter is told."""
LONGEST_NAME = 200
"""Characters; a longer first field is text, not the name of a column."""
csv.field_size_limit(LONGEST_LINE)


def delimiter_of(path: Path) -> str:
    """The delimiter that cuts the first rows into the same number of fields, most of them; a comma where none does."""
    if ".tsv" in path.name.lower():
        return "\t"
    lines = list(islice(TextLines(path, Repairs(("encoding",))), SNIFFED))
    scores = {delimiter: _evenness(lines, delimiter) for delimiter in DELIMITERS}
    return max(DELIMITERS, key=lambda delimiter: scores[delimiter])


def delimited_rows(path: Path, repairs: Repairs) -> Iterator[tuple[int, Row]]:
    """Each row with the byte at which it begins.

    Raises:
        BadData: no header, a quote that is never closed, or a row that no repair of `repairs` is for.
    """
    lines, delimiter = TextLines(path, repairs), delimiter_of(path)
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    header = _header(path, next(rows, []))
    while True:
        start, line = lines.position, lines.number + 1
        try:
            fields = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            if "end of data" in str(error) or "field larger" in str(error):
                raise BadData(
                    f"{path}, line {line}: a quote that opens a field closes it; found none before line "
                    f"{lines.number}. Close it, or double a quote inside a field."
                ) from error
            repairs.allow("ragged-rows", f"{path}, line {line}", f"must be CSV; found {error}.")
            continue
        if not fields:  # a blank line
            continue
        if len(fields) != len(header):
            rule = f"has {len(header)} fields, as the header; found {len(fields)}."
            repairs.allow("ragged-rows", f"{path}, line {line}", rule)
            continue
        yield start, dict(zip(header, fields, strict=True))


def _header(path: Path, names: list[str]) -> list[str]:
    if not any(name.strip() for name in names) or any(len(name) > LONGEST_NAME for name in names):
        raise BadData(
            f"{path}, line 1: must name the columns; found {', '.join(names)[:80] or 'nothing'!r}. Add a header line."
        )
    names = [name.strip() or f"column_{number}" for number, name in enumerate(names, start=1)]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise BadData(f"{path}, line 1: each column has a name of its own; found {twice[0]!r} twice. Rename one.")
    return names


def _evenness(lines: Iterable[str], delimiter: str) -> tuple[float, int]:
    """Share of rows with as many fields as the first, and their number; nothing for a single field."""
    try:
        sizes = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
    except csv.Error:
        return 0.0, 0
    if not sizes or sizes[0] == 1:
        return 0.0, 0
    return sum(size == sizes[0] for size in sizes) / len(sizes), sizes[0]
