"""A table of results on a terminal that may be too narrow for it: no figure is ever cut.

Where the longest words of all columns do not fit side by side, rows and columns change places; where that does not fit
either, the columns are shown in groups below each other, each beside the first one.
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
    """Characters that a table takes when its cells, those of the first column apart, are wrapped between words."""
    return EDGES + sum(_least_widths(columns)) + BETWEEN * (len(columns) - 1)


def _least_widths(columns: Columns) -> list[int]:
    first, *rest = columns
    longest = [max(cell_len(word) for cell in column for word in ["", *cell.split()]) for column in rest]
    return [max(map(cell_len, first)), *longest]


def _widths(columns: Columns, width: int) -> list[int]:
    """Width of each column: its longest word, and spare characters one by one to whichever lacks most for one line."""
    widths, left = _least_widths(columns), width - required_width(columns)
    lacking = [max(map(cell_len, column)) - least for column, least in zip(columns, widths, strict=True)]
    for _ in range(min(max(0, left), sum(lacking))):
        index = lacking.index(max(lacking))
        widths[index], lacking[index] = widths[index] + 1, lacking[index] - 1
    return widths


def _draw(columns: Columns, title: str | None, width: int) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    for index, (column, column_width) in enumerate(zip(columns, _widths(columns, width), strict=True)):
        table.add_column(column[0], justify="left" if index == 0 else "right", no_wrap=index == 0, width=column_width)
    for row in zip(*(column[1:] for column in columns), strict=True):
        table.add_row(*row)
    return table
