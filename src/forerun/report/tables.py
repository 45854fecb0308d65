"""Tables and curves of results as data; the terminal draws tables, the HTML report both."""

from forerun.records import Record

Cell = str | float | int | None


class ResultTable(Record):
    """Rows under columns; floats are shown with three decimals, None as a dash."""

    title: str
    note: str = ""
    columns: list[str]
    rows: list[list[Cell]]


class Series(Record):
    """One line of a `ResultCurve`; `low` and `high` are the ends of its interval at each x, if it has one."""

    name: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    is_scattered: bool = False
    """Whether the points are drawn as dots, without a line."""


class ResultCurve(Record):
    """Lines over a common x, with names and units of both axes."""

    title: str
    note: str = ""
    across: str
    up: str
    series: list[Series]


def cell_text(cell: Cell) -> str:
    """A cell as it is shown."""
    if cell is None:
        return "–"
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)
