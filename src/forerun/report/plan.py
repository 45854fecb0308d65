"""A plan for the terminal: what changes, the front, one line for each reason, and what would help."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from forerun.plan.outcome import FrontPoint, Migration, Reason, Remedy, RunPlan, WhatIf
from forerun.report.terminal import BAD, FAINT, GOOD, cost_text
from forerun.units import format_bytes, format_percent, format_seconds

WIDTH = 100
COLUMN_CHANGES = ("batch.micro_batch_size", "batch.gradient_accumulation_steps")
"""Changes that the table shows in columns of their own."""


def plan_view(plan: RunPlan) -> RenderableType:
    """One plan, from its verdict down to what was rejected."""
    parts: list[RenderableType] = [verdict_line(plan)]
    if plan.settings is not None:
        parts += [_changes(plan), Text(""), _front(plan)]
    parts += _lines("Why", plan.reasons)
    parts += _lines("Not chosen", plan.rejected)
    parts += _remedies(plan.remedies)
    parts += _confirmed(plan)
    parts += what_if_lines(plan.what_if)
    parts += [Text(f"! {warning}", style="yellow") for warning in plan.warnings]
    parts.append(Text(f"{plan.traces} steps traced in {format_seconds(plan.search_seconds)}", style=FAINT))
    title = f"Plan of {plan.name}" + (f" on {plan.gpu}" if plan.gpu else "")
    return Panel(Group(*parts), title=title, title_align="left", expand=False, width=WIDTH)


def verdict_line(plan: RunPlan) -> Text:
    """Whether it fits and keeps the limits, with numbers."""
    forecast = plan.forecast
    if forecast is None:
        return Text("Nothing fits", style=f"bold {BAD}")
    memory, seconds = forecast.memory, forecast.run.seconds.expected
    numbers = (
        f"{format_bytes(memory.device_bytes.conservative)} of {format_bytes(memory.capacity_bytes)} at most, "
        f"{format_seconds(forecast.step.seconds.expected)} a step, {format_seconds(seconds)} the run, "
        f"{cost_text(forecast.run.cost)}"
    )
    if plan.meets_limits:
        return Text(f"Fits: {numbers}", style=f"bold {GOOD}")
    limits = [
        f"{name} {limit_text}" for name, limit_text in (
            ("deadline", plan.deadline_seconds and format_seconds(plan.deadline_seconds)),
            ("budget", plan.budget and f"${plan.budget:,.2f}"),
        ) if limit_text
    ]  # fmt: skip
    return Text(f"Fits, but misses the {' and '.join(limits)}: {numbers}", style=f"bold {BAD}")


def _changes(plan: RunPlan) -> RenderableType:
    if not plan.changes:
        return Text("The given settings are the plan.")
    lines = [Text(f"  {change.description}") for change in plan.changes]
    given_forecast, forecast = plan.given, plan.forecast
    if given_forecast is not None and forecast is not None:
        if given_forecast.fits:
            before, now = given_forecast.run.seconds.expected, forecast.run.seconds.expected
            comparison = f"Against the given settings: run {format_seconds(before)} → {format_seconds(now)}"
            comparison += f" ({format_percent(now / before - 1, signed=True)})"
        else:
            needs = format_bytes(given_forecast.memory.device_bytes.conservative)
            comparison = f"The given settings do not fit: they need {needs}"
        lines.append(Text(comparison, style=FAINT))
    return Group(Text("Settings", style="bold"), *lines)


def _front(plan: RunPlan) -> Table:
    table = Table(title="Time, memory and cost", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("", "gpu", "micro-batch", "step", "run", "memory", "cost", "beside the plan"):
        table.add_column(column, justify="left" if column in ("", "gpu", "beside the plan") else "right")
    choice = next(point for point in plan.front if point.is_chosen)
    for point in plan.front:
        table.add_row(
            "▶" if point.is_chosen else "",
            point.gpu,
            str(point.micro_batch_size),
            format_seconds(point.step_seconds),
            format_seconds(point.run_seconds),
            format_bytes(point.device_bytes),
            "–" if point.cost is None else f"${point.cost:,.2f}",
            _beside(point, choice),
            style="bold" if point.is_chosen else "",
        )
    return table


def _beside(point: FrontPoint, choice: FrontPoint) -> str:
    ours = {change.path: change for change in choice.changes}
    its = {change.path: change for change in point.changes}
    words = [f"{path}={c.new}" for path, c in its.items() if path not in COLUMN_CHANGES and ours.get(path) != c]
    words += [f"{path}={c.old}" for path, c in ours.items() if path not in COLUMN_CHANGES and path not in its]
    return " ".join(words)


def _lines(title: str, reasons: Sequence[Reason]) -> list[RenderableType]:
    if not reasons:
        return []
    return [Text(title, style="bold"), *(Padding(Text(f"· {reason.said}"), (0, 0, 0, 2)) for reason in reasons)]


def _confirmed(plan: RunPlan) -> list[RenderableType]:
    """Forecast and measured steps of the contenders."""
    lines: list[RenderableType] = []
    for line in plan.confirmed:
        what = " ".join(f"{change.path}={change.new}" for change in line.changes) or "as given"
        took = line.failed or f"measured {format_seconds(line.measured_step_seconds or 0.0)}"
        text = f"{'▶' if line.is_chosen else '·'} {what}: forecast {format_seconds(line.forecast_step_seconds)}, {took}"
        lines.append(Padding(Text(text, style="bold" if line.is_chosen else ""), (0, 0, 0, 2)))
    return [Text("Real steps here", style="bold"), *lines] if lines else []


def what_if_lines(effects: Sequence[WhatIf]) -> list[RenderableType]:
    """One line for each change: memory, time, and whether it fits."""
    if not effects:
        return []
    lines: list[RenderableType] = []
    for line in effects:
        parts = [Text(f"+ {line.change}: {_more(line.more_bytes)}, {_slower(line.time_ratio)}")]
        if not line.fits:
            parts.append(Text(f", does not fit: needs {format_bytes(line.device_bytes)}", style=BAD))
        if line.changes_method:
            parts.append(Text(", other method", style=FAINT))
        lines.append(Padding(Text.assemble(*parts), (0, 0, 0, 2)))
    return [Text("What if", style="bold"), *lines]


def _more(size: float) -> str:
    return f"{'−' if size < 0 else '+'}{format_bytes(abs(size))}"


def _slower(ratio: float) -> str:
    return f"{format_percent(ratio - 1, signed=True).replace('-', '−')} time"


def _remedies(remedies: Sequence[Remedy]) -> list[RenderableType]:
    if not remedies:
        return []
    lines = [Padding(Text(f"{n}. {remedy.said}"), (0, 0, 0, 2)) for n, remedy in enumerate(remedies, start=1)]
    return [Text("What would help, the first first", style="bold"), *lines]


def migration_view(migration: Migration) -> RenderableType:
    """Rows of what changes and why, then the plan for the GPU to move to."""
    before, after = migration.before, migration.after
    table = Table("what", before.gpu or "before", after.gpu or "after", "why", box=box.SIMPLE_HEAD, pad_edge=False)
    table.title, table.title_justify = "What changes and why", "left"
    for row in migration.rows:
        table.add_row(row.what, row.before, row.after, row.why)
    return Group(table, plan_view(after))
