"""A table of results as data, drawn by both the terminal and the HTML report."""

from forerun.records import Record

Cell = str | float | int | None


class ResultTable(Record):
    """Rows under columns; floats are shown with three decimals, None as a dash."""

    title: str
    note: str = ""
    columns: list[str]
    rows: list[list[Cell]]


def cell_text(cell: Cell) -> str:
    """A cell as it is shown."""
    if cell is None:
        return "–"
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)
