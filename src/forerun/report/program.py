"""The forecast of a program as terminal tables: the forecast itself, how the program ran, what was assumed."""

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from forerun.records import Forecast
from forerun.report.terminal import forecast_comparison, forecast_table
from forerun.units import format_bytes, format_seconds

MOST_LINES = 8
"""Assumptions that are shown; `--json` has all."""


def program_tables(forecasts: Sequence[Any], title: str) -> list[RenderableType]:
    """Tables of the `ProgramForecast`s of one program, one for each card."""
    first = forecasts[0]
    plain: list[Forecast] = list(forecasts)
    if first.script.exit_code and not first.script.steps_seen and first.out_of_memory is None:
        text = "The program failed by itself before its first optimizer step, so nothing is forecast."
        main: RenderableType = Text(text, style="red")
    else:
        main = forecast_table(first, title) if len(plain) == 1 else forecast_comparison(plain)
    views: list[RenderableType] = [
        main,
        Text(
            f"{first.script.command}: {first.script.steps_seen} steps in "
            f"{format_seconds(first.script.wall_seconds)}, host memory {format_bytes(first.script.host_peak_bytes)}, "
            f"exit code {first.script.exit_code}."
        ),
    ]
    if first.out_of_memory is not None:
        full = first.out_of_memory
        views.append(
            Text(
                f"Out of memory at {full.line}: {format_bytes(full.tried_bytes)} asked for, "
                f"{format_bytes(full.allocated_bytes)} allocated.", style="red",
            )
        )  # fmt: skip
    views += [
        Text(f"Finding ({finding.kind}, {finding.line}): {finding.text}", style="yellow") for finding in first.findings
    ]
    if first.ranks:
        table = Table("rank", "allocated", "device", "step", title="Ranks", title_justify="left")
        for each in first.ranks:
            device, step = format_bytes(each.device_bytes), format_seconds(each.step_seconds)
            table.add_row(str(each.rank), format_bytes(each.peak_allocated_bytes), device, step)
        views += [table, Text(f"The forecast is that of rank {first.rank}, which needs most memory.")]
    if first.cards:
        table = Table("GPU", "allocated", "device", "fits", title="GPUs of the process", title_justify="left")
        for each in first.cards:
            sizes = format_bytes(each.peak_allocated_bytes), format_bytes(each.device_bytes)
            table.add_row(f"cuda:{each.number}", *sizes, "yes" if each.fits else "no")
        views.append(table)
    if first.assumed:
        table = Table("line", "value that nobody can know", "answered with", title="Assumed", title_justify="left")
        for each in first.assumed[:MOST_LINES]:
            table.add_row(each.line, each.what, each.value)
        views.append(table)
    return views
