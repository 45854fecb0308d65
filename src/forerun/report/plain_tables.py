"""What the terminal shows, as Markdown or CSV: the same tables and lines, without colours, boxes and wrapping.

Tables are read from what rich would draw, so a command has one description of its output. In Markdown lines between
tables are paragraphs; in CSV they are left to the caller, and tables stand below each other with an empty line between.
"""

import csv
import io
from collections.abc import Iterator, Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from forerun.records import Record
from forerun.report.fitted_table import FittedTable

WIDTH = 10_000
"""Characters of a line that is not to be wrapped."""


class PlainTable(Record):
    """One table as text."""

    title: str
    columns: list[str]
    rows: list[list[str]]


Part = PlainTable | str


def plain_parts(view: object) -> list[Part]:
    """Tables and lines of a view, in order; empty lines are left out."""
    return [part for part in _parts(view) if part != ""]


def _parts(view: object) -> Iterator[Part]:
    if isinstance(view, Table):
        yield _plain(view)
        if view.caption:
            yield _text(view.caption)
    elif isinstance(view, FittedTable):
        headings = [column[0] for column in view.columns]
        rows = [list(row) for row in zip(*(column[1:] for column in view.columns), strict=True)]
        yield PlainTable(title=view.title, columns=headings, rows=rows)
        if view.note:
            yield view.note
    elif isinstance(view, Group):
        for each in view.renderables:
            yield from _parts(each)
    else:
        yield _text(view).strip("\n")


def _plain(table: Table) -> PlainTable:
    cells = [[_text(cell) for cell in column.cells] for column in table.columns]
    return PlainTable(
        title=_text(table.title or ""),
        columns=[_text(column.header) for column in table.columns],
        rows=[list(row) for row in zip(*cells, strict=True)],
    )


def _text(value: object) -> str:
    if isinstance(value, str):
        return Text.from_markup(value).plain
    if isinstance(value, Text):
        return value.plain
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    with console.capture() as capture:
        console.print(value)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def as_markdown(parts: Sequence[Part]) -> str:
    """GitHub's tables, each under its title, and paragraphs."""
    blocks: list[str] = []
    for part in parts:
        if isinstance(part, str):
            blocks.append(_escape(part))
            continue
        blocks += [f"**{_escape(part.title)}**"] if part.title else []
        lines = [part.columns, ["---"] * len(part.columns), *part.rows]
        escaped = [[cell if line is lines[1] else _escape(cell) for cell in line] for line in lines]
        blocks.append("\n".join(f"| {' | '.join(line)} |" for line in escaped))
    return "\n\n".join(blocks) + "\n"


def _escape(text: str) -> str:
    for special in ("\\", "`", "*", "_", "|", "<", "["):
        text = text.replace(special, f"\\{special}")
    return "<br>".join(text.strip().splitlines())


def as_csv(parts: Sequence[Part]) -> str:
    """The tables alone, as RFC 4180 has them."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    tables = [part for part in parts if isinstance(part, PlainTable)]
    for number, table in enumerate(tables):
        if number:
            out.write("\n")
        writer.writerow(table.columns)
        writer.writerows(table.rows)
    return out.getvalue()


def lines_of(parts: Sequence[Part]) -> list[str]:
    """What is no table."""
    return [part for part in parts if isinstance(part, str)]
