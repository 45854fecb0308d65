"""A table of results on a terminal that may be too narrow for it: no figure is ever cut.

Where the longest words of all columns do not fit side by side, rows and columns change places; where that does not fit
either, the columns are shown in groups below each other, each beside the first one. Sentences are wrapped wherever they
stand; a first column of names is not.
"""

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from forerun.report.tables import ResultTable, cell_text

FAINT = "dim"
EDGES, BETWEEN = 2, 2
"""Characters that the frame takes: at both sides, and before each further column."""
LONGEST_NAME = 40
"""Characters; a column with a longer cell holds sentences, of which a longer word is broken."""
Columns = list[list[str]]
"""Columns of a table, each a heading and its cells."""


class FittedTable:
    """A rich renderable of a table of results with its note."""

    def __init__(self, result: ResultTable):
        self.title, self.note = result.title, result.note
        rows = [[cell_text(cell) for cell in row] for row in result.rows]
        self.columns: Columns = [list(column) for column in zip(result.columns, *rows, strict=True)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for number, columns in enumerate(fit_columns(self.columns, options.max_width)):
            yield _draw(columns, self.title if number == 0 else None, options.max_width)
        if self.note:
            yield Text(self.note, style=FAINT)


def fit_columns(columns: Columns, width: int) -> list[Columns]:
    """The columns as they are, transposed, or in groups, so that each table fits `width` characters."""
    if required_width(columns) <= width or len(columns) < 2:
        return [columns]
    turned = [list(row) for row in zip(*columns, strict=True)]
    if required_width(turned) <= width:
        return [turned]
    groups: list[Columns] = [[columns[0]]]
    for column in columns[1:]:
        if len(groups[-1]) > 1 and required_width([*groups[-1], column]) > width:
            groups.append([columns[0]])
        groups[-1].append(column)
    return groups


def required_width(columns: Columns) -> int:
    """Characters that a table takes when its cells, names in the first column apart, are wrapped between words."""
    return EDGES + sum(_least_widths(columns)) + BETWEEN * (len(columns) - 1)


def _least_widths(columns: Columns) -> list[int]:
    return [_least_width(column, is_first=index == 0) for index, column in enumerate(columns)]


def _least_width(column: list[str], *, is_first: bool) -> int:
    has_sentences = _has_sentences(column)
    if is_first and not has_sentences:
        return max(map(cell_len, column))
    longest = max(cell_len(word) for cell in column for word in ["", *cell.split()])
    return min(longest, LONGEST_NAME) if has_sentences else longest


def _has_sentences(column: list[str]) -> bool:
    return max(map(cell_len, column)) > LONGEST_NAME


def _widths(columns: Columns, width: int) -> list[int]:
    """Width of each column: its least, and spare characters one by one to whichever takes most lines."""
    widths, left = _least_widths(columns), width - required_width(columns)
    whole = [max(map(cell_len, column)) for column in columns]
    lacking = sum(max(0, full - least) for full, least in zip(whole, widths, strict=True))
    for _ in range(min(max(0, left), lacking)):
        lines = [full / own if own else full for full, own in zip(whole, widths, strict=True)]
        widths[lines.index(max(lines))] += 1
    return widths


def _draw(columns: Columns, title: str | None, width: int) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    for index, (column, column_width) in enumerate(zip(columns, _widths(columns, width), strict=True)):
        has_sentences = _has_sentences(column)
        table.add_column(
            column[0], justify="left" if index == 0 or has_sentences else "right", overflow="fold",
            no_wrap=index == 0 and not has_sentences, width=column_width,
        )  # fmt: skip
    for row in zip(*(column[1:] for column in columns), strict=True):
        table.add_row(*row)
    return table
