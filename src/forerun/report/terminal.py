"""Forecast, comparison, verdict and result tables for the terminal; 80 columns are enough."""

from collections.abc import Sequence
from typing import Any, Protocol

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from forerun.records import Forecast, Range, Record, RunReliability, Verdict, VerdictRow
from forerun.report.fitted_table import FittedTable
from forerun.report.kinds_table import kinds_table
from forerun.report.tables import ResultTable
from forerun.units import KILOWATT_HOUR, format_bytes, format_percent, format_seconds
from forerun.verify.early_stop import early_stop_sentence

BAR_WIDTH = 24
GOOD, BAD, FAINT = "green", "red", "dim"


class Run(Protocol):
    """The fields that a row of `forerun runs` shows."""

    id: str
    name: str
    gpu: str
    started_at: str
    state: str


def forecast_table(forecast: Forecast, title: str) -> RenderableType:
    """One forecast, from whether it fits down to what is not modelled."""
    kinds = [kinds_table(forecast.kinds)] if len(forecast.kinds) > 1 else []
    steps = [_step(forecast)] if forecast.step.seconds.expected or not forecast.run.seconds.expected else []
    parts = _fit_line(forecast), _memory(forecast), *steps, _run(forecast), *kinds, *_notes(forecast)
    return Panel(Group(*parts), title=f"{title} on {forecast.gpu}", title_align="left", expand=False)


def _fit_line(forecast: Forecast) -> Text:
    memory = forecast.memory
    needs, has = format_bytes(memory.device_bytes.conservative), format_bytes(memory.capacity_bytes)
    if forecast.fits:
        return Text(f"Fits: {needs} of {has} at most", style=f"bold {GOOD}")
    full = getattr(forecast, "out_of_memory", None)  # of a program: it stopped before it reached its peak
    if full is not None:
        needs = f"{format_bytes(full.tried_bytes)} beside {format_bytes(full.allocated_bytes)}"
    return Text(f"Does not fit: needs {needs}, {forecast.gpu} has {has}", style=f"bold {BAD}")


def _memory(forecast: Forecast) -> Table:
    memory = forecast.memory
    table = Table("memory", "", "", title_justify="left", box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_row(Text("Memory", style="bold"))
    table.add_row("  peak allocated", format_bytes(memory.peak_allocated_bytes), "by tensors")
    for name, size in memory.breakdown.model_dump().items():
        share = size / max(1, memory.peak_allocated_bytes)
        label = name.removesuffix("_bytes").replace("_", " ")
        table.add_row(f"    {label}", Text(format_bytes(size), style=FAINT), Text(_bar(share), style="cyan"))
    table.add_row("  peak reserved", format_bytes(memory.peak_reserved_bytes), "by the allocator")
    table.add_row("  device", *_range_cells(memory.device_bytes, format_bytes))
    table.add_row("  capacity", format_bytes(memory.capacity_bytes), _bar_of(forecast))
    return table


def _bar(share: float) -> str:
    return "█" * round(min(1.0, share) * BAR_WIDTH)


def _bar_of(forecast: Forecast) -> Text:
    share = forecast.memory.device_bytes.expected / forecast.memory.capacity_bytes
    return Text(f"{_bar(share)} {format_percent(share)} used", style=GOOD if forecast.fits else BAD)


def _range_cells(band: Range, show: Any) -> tuple[str, Text]:
    return show(band.expected), Text(f"{show(band.optimistic)} … {show(band.conservative)}", style=FAINT)


def _step(forecast: Forecast) -> Table:
    step = forecast.step
    table = Table("", "", "", box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_row(Text("Step", style="bold"), *_range_cells(step.seconds, format_seconds))
    _add_phases(table, step.phases, step.seconds.expected)
    tokens = f"{step.tokens_per_second:,.0f} tokens/s, " if step.tokens_per_second else ""
    rates = f"{tokens}{step.samples_per_second:,.1f} rows/s"
    table.add_row("  mfu", format_percent(step.mfu), Text(rates, style=FAINT))
    return table


def _run(forecast: Forecast) -> Table:
    run = forecast.run
    table = Table("", "", "", box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_row(Text("Run", style="bold"), *_range_cells(run.seconds, format_seconds))
    _add_phases(table, run.phases, run.seconds.expected)
    epochs = f"{run.steps_per_epoch:,} an epoch" if run.steps_per_epoch < run.total_steps else ""
    table.add_row("  steps", f"{run.total_steps:,}", Text(epochs, style=FAINT))
    size = format_bytes(run.checkpoint_bytes)
    table.add_row("  checkpoints", f"{run.checkpoints_written}", Text(f"{size} each", style=FAINT))
    table.add_row("  cost", cost_text(run.cost), Text(forecast.detail.price, style=FAINT))
    if run.reliability is not None:
        _add_reliability(table, run.reliability)
    return table


def _add_reliability(table: Table, run: RunReliability) -> None:
    """Rows of the run with its interruptions."""
    between = run.seconds_between_interruptions
    often = "none" if between is None else f"one in {format_seconds(between)}"
    saved = f"best every {run.best_every_steps:,} steps: {_or_endless(run.best_seconds)}"
    energy = "unknown" if run.energy_joules is None else f"{run.energy_joules / KILOWATT_HOUR:,.0f} kWh"
    table.add_row(Text("Run with failures", style="bold"), _or_endless(run.seconds), Text(run.source, style=FAINT))
    count = "–" if run.interruptions is None else f"{run.interruptions:,.1f}"
    often += f", restart {format_seconds(run.restart_seconds)}"
    table.add_row("  interruptions", count, Text(often, style=FAINT))
    table.add_row("  goodput", format_percent(run.goodput), Text(_bar(run.goodput), style="cyan"))
    table.add_row("  work done again", _or_endless(run.repeated_seconds), "")
    table.add_row("  checkpoints", f"every {run.every_steps:,}", Text(saved, style=FAINT))
    table.add_row("  cost", cost_text(run.cost), Text(f"on demand {cost_text(run.on_demand_cost)}", style=FAINT))
    table.add_row("  energy", energy, Text("GPUs at their board's limit", style=FAINT))


def _or_endless(seconds: float | None) -> str:
    return "never ends" if seconds is None else format_seconds(seconds)


def _add_phases(table: Table, phases: Record, whole: float) -> None:
    for name, seconds in phases.model_dump().items():
        if seconds > 0:
            label = name.removesuffix("_seconds").replace("_", " ")
            table.add_row(f"  {label}", format_seconds(seconds), Text(_bar(seconds / whole), style="cyan"))


def cost_text(cost: float | None) -> str:
    """Dollars, or that no price is known."""
    return "no price known" if cost is None else f"${cost:,.2f}"


def _notes(forecast: Forecast) -> list[Text]:
    notes = [Text(f"! {warning}", style="yellow") for warning in forecast.warnings]
    return [*notes, *(Text(f"not modelled: {item}", style=FAINT) for item in forecast.not_modelled)]


def forecast_comparison(forecasts: Sequence[Forecast]) -> Table:
    """Forecasts of one run on several devices side by side; the quickest and the cheapest that fit are marked."""
    table = Table("gpu", "fits", "needs / has", "step", "run", "cost", title="Forecast by GPU", title_justify="left")
    fitting = [f for f in forecasts if f.fits]
    quickest = min(fitting, key=lambda f: f.run.seconds.expected, default=None)
    priced = [f for f in fitting if f.run.cost is not None]
    cheapest = min(priced, key=lambda f: f.run.cost or 0.0, default=None)
    for forecast in forecasts:
        memory, run = forecast.memory, forecast.run
        table.add_row(
            forecast.gpu,
            Text("yes", style=GOOD) if forecast.fits else Text("no", style=BAD),
            f"{format_bytes(memory.device_bytes.conservative)} / {format_bytes(memory.capacity_bytes)}",
            format_seconds(forecast.step.seconds.expected),
            Text(format_seconds(run.seconds.expected), style=f"bold {GOOD}" if forecast is quickest else ""),
            Text(
                "–" if run.cost is None else f"${run.cost:,.2f}", style=f"bold {GOOD}" if forecast is cheapest else ""
            ),
        )
    return table


def verdict_table(verdict: Verdict) -> RenderableType:
    """Forecast against measured, criteria, and the first cause."""
    table = Table(
        "quantity", "forecast", "measured", "error", "", title="Forecast against measured", title_justify="left"
    )
    for column in (1, 2, 3):
        table.columns[column].justify = "right"
    for row in verdict.rows:
        mark = "" if row.inside_range is None else "in range" if row.inside_range else "out of range"
        table.add_row(
            row.field.replace("_seconds", "").replace("_bytes", "").replace("_", " "),
            quantity_text(row, row.forecast),
            quantity_text(row, row.measured),
            "–" if row.relative_error is None else format_percent(row.relative_error, signed=True),
            Text(mark, style=FAINT),
        )
    parts: list[RenderableType] = [table]
    if verdict.stopped_early:
        parts.append(Text(early_stop_sentence(verdict)))
    for criterion in verdict.criteria:
        style, word = (GOOD, "pass") if criterion.passed else (BAD, "FAIL") if criterion.judged else (FAINT, "----")
        style, word = ("yellow", "open") if criterion.open else (style, word)
        parts.append(Text.assemble((f"{word}  ", style), f"{criterion.name}: {criterion.value:.3f} ({criterion.rule})"))
        if criterion.open:
            parts.append(Text(f"      {criterion.open}.", style="yellow"))
    if verdict.better_baseline:
        parts.append(Text(f"{verdict.better_baseline}.", style="yellow"))
    if verdict.first_cause:
        parts.append(Text(verdict.first_cause, style="yellow"))
    for cause in verdict.causes:
        more = "longer" if cause.seconds > 0 else "shorter"
        parts.append(Text(f"  {format_seconds(abs(cause.seconds))} {more}: {cause.said}", style=FAINT))
    return Group(*parts)


def quantity_text(row: VerdictRow, value: float) -> str:
    """A value of a verdict row in its unit."""
    if row.unit == "bytes":
        return format_bytes(value)
    if row.unit == "seconds":
        return format_seconds(value)
    return f"{value:,.0f}" if row.unit == "count" or value >= 100 else f"{value:,.1f}"


def runs_table(rows: Sequence[Run]) -> Table:
    """Runs, newest first."""
    table = Table("run", "name", "gpu", "started", "state")
    for row in rows:
        table.add_row(row.id, row.name, row.gpu, row.started_at[:16].replace("T", " "), row.state)
    return table


def result_table(result: ResultTable) -> RenderableType:
    """A table of results with its note."""
    return FittedTable(result)
