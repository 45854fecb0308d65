"""What does `forerun doctor --benchmark` show? One row per precision and length, then what follows."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forerun.units import format_bytes, format_percent, format_seconds


class Row(Protocol):
    """One precision at one length."""

    precision: Any
    sequence_length: int
    refused: str
    step_seconds: float | None
    step_seconds_p10: float | None
    step_seconds_p90: float | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    forecast_step_seconds: float | None
    forecast_peak_allocated_bytes: int | None
    is_host_bound: bool

    @property
    def is_sound(self) -> bool:
        """Loss and gradients are finite."""
        ...


def precision_view(title: str, rows: Sequence[Row], recommendation: str) -> RenderableType:
    """The table, refusals below it, and the recommendation."""
    table = Table(
        "precision", "tokens", "step", "p10 to p90", "forecast", "peak", "forecast", "", title=title, box=SIMPLE_HEAD
    )
    for column in table.columns[1:7]:
        column.justify = "right"
    for row in rows:
        if row.step_seconds is not None:
            table.add_row(*_cells(row))
    refused = dict.fromkeys(row.refused for row in rows if row.refused)
    notes = [Text(reason, style="dim") for reason in refused]
    return Group(table, *notes, Text(f"Recommended: {recommendation}", style="bold green"))


def _cells(row: Row) -> list[str]:
    marks = ["" if row.is_sound else "not finite", "host-bound" if row.is_host_bound else ""]
    marks.append("refused" if row.refused else "")
    return [
        row.precision,
        str(row.sequence_length),
        format_seconds(row.step_seconds or 0.0),
        f"{format_seconds(row.step_seconds_p10 or 0.0)} to {format_seconds(row.step_seconds_p90 or 0.0)}",
        _with_error(format_seconds, row.forecast_step_seconds, row.step_seconds),
        format_bytes(row.peak_allocated_bytes or 0),
        _with_error(format_bytes, row.forecast_peak_allocated_bytes, row.peak_allocated_bytes),
        " ".join(mark for mark in marks if mark),
    ]


def _with_error(show: Callable[[float], str], forecast: float | None, measured: float | None) -> str:
    """A forecast and how far it is off; a dash where there is none."""
    if not forecast or not measured:
        return "–"
    return f"{show(forecast)} {format_percent(forecast / measured - 1, signed=True)}"
