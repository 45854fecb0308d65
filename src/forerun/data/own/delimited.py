"""Rows of a CSV file, one at a time with the byte at which each begins; the delimiter is told by the first rows.

Excel's first line `sep=;` names the delimiter and is no row. Nor are comments: lines before the table that begin with
`#` and have another number of fields than it. The next line names the columns, or `header` is `none` and they are
`column_1`, `column_2`; a line whose cell is a value of its own column seems a row, and must be decided on.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import dropwhile, islice, takewhile
from pathlib import Path
from typing import Literal, NamedTuple

from forerun.data.own.columns import Row
from forerun.data.own.packed_files import plain_name
from forerun.data.own.repairs import Repairs
from forerun.data.own.text_lines import LONGEST_LINE, TextLines
from forerun.errors import BadData

DELIMITERS = (",", ";", "\t", "|")
SNIFFED = 50
"""Lines by which the delimiter is told."""
EXCEL_MARK = "sep="
COMMENT = "#"
LOOKED_AT, OFTEN = 500, 0.02
"""Rows among which a column's name is looked for in it, and the share of them from which it seems a value."""
LOOKED_AT_FOR_QUOTES = 5000
QUOTED = re.compile(r'"([^"]|"")*"')
NO_HEADER, HEADER = "none", "first"
LONGEST_NAME = 200
"""Characters; a longer first field is text, not the name of a column."""
SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？", "।", "؟")
HOPELESS = ("end of data", "field larger", "new-line")
"""Words of errors after which rows cannot be told apart."""
csv.field_size_limit(LONGEST_LINE)


def delimiter_of(path: Path) -> str:
    """The delimiter that cuts the first rows into the same number of fields, most of them; a comma where none does."""
    if plain_name(path).endswith(".tsv"):
        return "\t"
    lines = _first_lines(path, SNIFFED)
    if lines and _is_mark(lines[0]):
        return lines[0].strip()[len(EXCEL_MARK)]
    table = list(dropwhile(_may_be_comment, lines))
    scores = {delimiter: _evenness(table, delimiter) for delimiter in DELIMITERS}
    return max(DELIMITERS, key=lambda delimiter: scores[delimiter])


def comment_lines(path: Path) -> int:
    """Lines before the table that are comments."""
    lines, delimiter = _first_lines(path, SNIFFED), delimiter_of(path)
    table = list(dropwhile(_may_be_comment, lines))
    size = _fields(table, delimiter)
    comments = takewhile(lambda line: _may_be_comment(line) and _fields([line], delimiter) != size, lines)
    return sum(1 for _ in comments) if table else 0


class NameAmongValues(NamedTuple):
    """A cell of the first line that is also a value of its column, `times` in `rows` rows."""

    name: str
    times: int
    rows: int


def name_among_values(path: Path) -> NameAmongValues | None:
    """The name of a column that comes so often in that column that the first line seems a row; None without one.

    Lines that repeat the whole header, and names that only number the columns (0, 1, 2 …), say nothing.
    """
    names, *others = _first_rows(path) or [[]]
    if names in ([str(n) for n in range(len(names))], [str(n + 1) for n in range(len(names))]):
        return None
    others = [row for row in others if row != names]
    counts = [
        (sum(place < len(row) and row[place] == name for row in others), name)
        for place, name in enumerate(names) if name.strip()
    ]  # fmt: skip
    count, name = max(counts, default=(0, ""))
    is_often = count >= max(2, OFTEN * len(others))
    return NameAmongValues(name, count, len(others)) if is_often else None


def text_as_name(path: Path) -> str:
    """The cell of the first line that seems a text and no name: too long, or a sentence above sentences; else empty."""
    rows = _first_rows(path)
    names, others = (rows[0], rows[1:]) if rows else ([], [])
    columns = [[row[place].strip() for row in others if place < len(row)] for place in range(len(names))]
    return next((n for n, cells in zip(names, columns, strict=True) if cells and _is_text_above(n.strip(), cells)), "")


def delimited_rows(path: Path, repairs: Repairs, header: str | None = None) -> Iterator[tuple[int, Row]]:
    """Each row with the byte at which it begins; `header` is `data.fields.header`.

    Raises:
        BadData: no header, a quote that is never closed, or a row that no repair of `repairs` is for.
    """
    delimiter, before = delimiter_of(path), comment_lines(path) + _is_mark(next(iter(_first_lines(path, 1)), ""))
    quoting = _quoting(path, delimiter, before)

    def open_rows(repairs: Repairs) -> tuple[TextLines, Iterator[list[str]]]:
        lines = TextLines(path, repairs)
        return lines, csv.reader(islice(lines, before, None), delimiter=delimiter, quoting=quoting, strict=True)

    if header is None:
        _require_names(path)
    is_named = header != NO_HEADER
    lines, rows = open_rows(repairs if is_named else Repairs(("encoding",)))
    try:
        header_cells = next(rows, [])
    except csv.Error as error:
        raise _unreadable(path, lines.number, error) from error
    names = _names(path, header_cells, header, before + 1)
    if not is_named:
        lines, rows = open_rows(repairs)  # from the first line again, which is a row
    while True:
        start, line = lines.position, lines.number + 1
        try:
            fields = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            if lines.number > line or any(words in str(error) for words in HOPELESS):
                raise _unreadable(path, line, error, lines.number) from error
            repairs.allow("ragged-rows", f"{path}, line {line}", f"must be CSV; found {error}.")
            continue
        if not fields:  # a blank line
            continue
        if len(fields) != len(names):
            model = f"line {before + 1}" if header == NO_HEADER else "the header"
            are = "field" if len(names) == 1 else "fields"
            rule = f"has {len(names)} {are}, as {model}; found {len(fields)}."
            if len(fields) > len(names):
                rule += f" A text with {delimiter!r} in it stands in quotes."
            repairs.allow("ragged-rows", f"{path}, line {line}", rule)
            continue
        if header != NO_HEADER and len(names) > 1 and [fields[0].removeprefix("\ufeff"), *fields[1:]] == header_cells:
            repairs.allow("ragged-rows", f"{path}, line {line}", "must be a row; found the header again.")
            continue
        yield start, dict(zip(names, fields, strict=True))


def _unreadable(path: Path, line: int, error: csv.Error, last: int | None = None) -> BadData:
    """What is wrong where rows cannot be told apart any more, so that no repair is for it."""
    if "new-line" in str(error):
        return BadData(
            f"{path}, line {line}: lines end in LF or CR LF; found CR alone within the line. Where it ends a row, "
            f"write the file anew: tr '\\r' '\\n' < {path.name} > new-{path.name}; where it does not, take it out: "
            f"tr -d '\\r'."
        )
    return BadData(
        f"{path}, line {line}: a quote that opens a field closes it; found none before line {last or line}, where "
        f"something else follows ({error}). Close it, or double a quote inside a field."
    )


def _require_names(path: Path) -> None:
    """Refuse a first line that seems a row."""
    repeat = name_among_values(path)
    if repeat is not None:
        raise BadData(
            f"{path}, line {comment_lines(path) + 1}: must name the columns; found {repeat.name!r}, which is also the "
            f"value of {repeat.times} of the next {repeat.rows} rows of its column, so it seems a row. Put a line of "
            f"names before it, or set data.fields: {{header: {NO_HEADER}}} (the columns are column_1, column_2, …), or "
            f"{{header: {HEADER}}} if it does name them."
        )


def _names(path: Path, names: list[str], header: str | None, line: int) -> list[str]:
    if header == NO_HEADER:
        return [f"column_{number}" for number in range(1, len(names) + 1)]
    if not any(name.strip() for name in names) or any(len(name) > LONGEST_NAME for name in names):
        raise BadData(
            f"{path}, line {line}: must name the columns; found {', '.join(names)[:80] or 'nothing'!r}. Add a "
            f"header line, or set data.fields: {{header: {NO_HEADER}}}."
        )
    names = [name.strip() or f"column_{number}" for number, name in enumerate(names, start=1)]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise BadData(f"{path}, line {line}: each column has a name of its own; found {twice[0]!r} twice. Rename one.")
    return names


def _first_rows(path: Path) -> list[list[str]]:
    """The first rows, that of names among them; none where they cannot be read."""
    lines = _first_lines(path, LOOKED_AT)[comment_lines(path) :]
    rows = csv.reader(lines[1:] if lines and _is_mark(lines[0]) else lines, delimiter=delimiter_of(path))
    try:
        return [row for row in rows if row]
    except csv.Error:
        return []


def _is_text_above(name: str, cells: Sequence[str]) -> bool:
    """Whether a name is too long for one, or ends as most of the cells below it do, as a sentence does."""
    alike = sum(cell.endswith(name[-1:]) for cell in cells)
    return len(name) > LONGEST_NAME or (name.endswith(SENTENCE_ENDS) and 2 * alike > len(cells))


def _first_lines(path: Path, count: int) -> list[str]:
    return list(islice(TextLines(path, Repairs(("encoding",))), count))


def _may_be_comment(line: str) -> bool:
    return line.startswith(COMMENT) or not line.strip()


def _fields(lines: Iterable[str], delimiter: str) -> int:
    """Fields of the first row; none where it cannot be read."""
    try:
        return len(next(csv.reader(lines, delimiter=delimiter), []))
    except csv.Error:
        return 0


def _is_mark(line: str) -> bool:
    """Whether a line is Excel's, which names the delimiter."""
    line = line.strip("\r\n")
    return line.lower().startswith(EXCEL_MARK) and len(line) == len(EXCEL_MARK) + 1 and line[-1] in DELIMITERS


def _quoting(path: Path, delimiter: str, before: int) -> Literal[0, 3]:
    """None in files of tabs whose quotes are letters: without it lines are even, and a quote that opens stays open."""
    if delimiter != "\t":
        return csv.QUOTE_MINIMAL
    lines = _first_lines(path, LOOKED_AT_FOR_QUOTES)[before:]
    rows = [line.rstrip("\r\n").split("\t") for line in lines if line.strip()]
    is_even = len({len(row) for row in rows}) == 1
    is_letter = any(cell.startswith('"') and not QUOTED.fullmatch(cell) for row in rows for cell in row)
    return csv.QUOTE_NONE if is_even and is_letter else csv.QUOTE_MINIMAL


def _evenness(lines: Iterable[str], delimiter: str) -> tuple[float, int]:
    """Share of rows with as many fields as the first, and their number; nothing for a single field."""
    try:
        sizes = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
    except csv.Error:
        return 0.0, 0
    if not sizes or sizes[0] == 1:
        return 0.0, 0
    return sum(size == sizes[0] for size in sizes) / len(sizes), sizes[0]
