"""One self-contained HTML page of a run: verdict, forecast against measured, memory, time, learning, results.

No network, no script. The template lays out what this module computes; text is escaped by Jinja, charts by `charts`.
"""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from forerun.records import CriterionResult, Forecast, Measurement, MemoryBreakdown, Record, StepReport, Verdict
from forerun.report.charts import Band, Line, draw_lines, draw_stack, line_view, stack_view
from forerun.report.figure import curve_lines, curve_view
from forerun.report.tables import ResultCurve, ResultTable, cell_text
from forerun.report.terminal import quantity_text
from forerun.units import format_bytes, format_percent, format_seconds
from forerun.verify.early_stop import early_stop_sentence, until_it_stopped

OPERATORS_SHOWN = 10
LOSS_PARTS_SHOWN = 6


class PageContent(Record):
    """The records that a page shows."""

    title: str
    run: dict[str, str]
    settings: dict[str, Any]
    forecast: Forecast
    measurement: Measurement | None
    verdict: Verdict | None
    steps: list[StepReport]
    tables: list[ResultTable]
    curves: list[ResultCurve] = []


class Bar(Record):
    """One phase: forecast and measured seconds, and their widths in percent of the longest."""

    name: str
    forecast: str
    measured: str
    forecast_width: float
    measured_width: float


def render_page(content: PageContent) -> str:
    """One self-contained HTML document."""
    forecast, measured = content.forecast, content.measurement
    return page_template("page.html.j2").render(
        content=content,
        tables=content.tables,
        forecast=forecast,
        measured=measured,
        headline=headline(content),
        facts=facts(content),
        rows=verdict_rows(content.verdict),
        memory=Markup(memory_chart(forecast, measured)),
        parts=memory_parts(forecast),
        card_share=round(100 * forecast.memory.capacity_bytes / _memory_scale(forecast), 2),
        legend=[name.removesuffix("_bytes") for name in MemoryBreakdown.model_fields],
        step_bars=phase_bars(forecast.step.phases, None if measured is None else measured.step.phases),
        run_bars=run_bars(forecast, measured),
        operators=forecast.detail.operators[:OPERATORS_SHOWN],
        charts=[Markup(chart) for chart in step_charts(content)],
        curves=[Markup(curve_chart(curve)) for curve in content.curves],
        cell_text=cell_text,
        seconds=format_seconds,
        size=format_bytes,
        settings=flat(content.settings),
        word=criterion_word,
    )


def render_results(title: str, note: str, tables: Sequence[ResultTable], curves: Sequence[ResultCurve]) -> str:
    """One self-contained HTML document of tables and curves."""
    return page_template("sweep.html.j2").render(
        title=title, note=note, tables=tables, curves=[Markup(curve_chart(curve)) for curve in curves],
        cell_text=cell_text,
    )  # fmt: skip


@cache
def page_template(name: str) -> jinja2.Template:
    """A template of this folder; what it is given is escaped unless it is `Markup`."""
    loader = jinja2.PackageLoader("forerun.report", "")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.get_template(name)


def headline(content: PageContent) -> str:
    """The verdict in a sentence; before it, that the run stopped early."""
    if content.verdict is None:
        return f"This run is {content.run['state']}: there is no verdict yet."
    return " ".join(filter(None, (early_stop_sentence(content.verdict), _outcome(content.verdict))))


def _outcome(verdict: Verdict) -> str:
    criteria, baseline = verdict.criteria, verdict.better_baseline
    first = f"{baseline}. " if baseline else ""
    failures = [criterion.name for criterion in criteria if criterion.judged and not criterion.passed]
    if failures:
        return f"{first}{len(failures)} of {len(criteria)} criteria failed: {'; '.join(failures)}."
    uncertain = [f"{criterion.name}: {criterion.open}" for criterion in criteria if criterion.open]
    unjudged = [criterion.name for criterion in criteria if not criterion.judged]
    if uncertain:
        passed = f"{len(criteria) - len(uncertain) - len(unjudged)} of {len(criteria)} criteria passed"
        others = f" Not judged, since others used the processors: {'; '.join(unjudged)}." if unjudged else ""
        return f"{passed}; {'; '.join(uncertain)}.{others}"
    if unjudged:
        passed = f"{len(criteria) - len(unjudged)} of {len(criteria)} criteria passed"
        return f"{passed}; not judged, since others used the processors: {'; '.join(unjudged)}."
    return f"All {len(criteria)} criteria passed."


def criterion_word(result: CriterionResult) -> str:
    """`pass`, `fail`, `open` where a pass may be luck, or `not judged`."""
    if result.open:
        return "open"
    return "pass" if result.passed else "fail" if result.judged else "not judged"


def facts(content: PageContent) -> list[tuple[str, str, str]]:
    """The headline numbers: name, measured (or forecast) value, and the forecast's error."""
    forecast, verdict = content.forecast, content.verdict
    if verdict is None:
        return [
            ("step time", format_seconds(forecast.step.seconds.expected), "forecast"),
            ("peak memory", format_bytes(forecast.memory.peak_allocated_bytes), "forecast"),
            ("whole run", format_seconds(forecast.run.seconds.expected), "forecast"),
        ]
    labels = {"step.seconds": "step time", "peak_allocated_bytes": "peak memory", "run.seconds": "whole run"}
    rows = []
    for row in verdict.rows:
        if row.field in labels:
            error = "–" if row.relative_error is None else format_percent(row.relative_error, signed=True)
            rows.append((labels[row.field], quantity_text(row, row.measured), f"forecast {error}"))
    return rows


def verdict_rows(verdict: Verdict | None) -> list[tuple[str, str, str, str, str]]:
    """Quantity, forecast, measured, error, and whether it lay in the range."""
    rows = []
    for row in verdict.rows if verdict else []:
        inside = "" if row.inside_range is None else "in range" if row.inside_range else "out of range"
        error = "–" if row.relative_error is None else format_percent(row.relative_error, signed=True)
        name = row.field.replace("_seconds", "").replace("_bytes", "").replace("_", " ").replace(".", ": ")
        rows.append((name, quantity_text(row, row.forecast), quantity_text(row, row.measured), error, inside))
    return rows


def memory_chart(forecast: Forecast, measured: Measurement | None) -> str:
    """Live bytes by category over the step in which memory peaks; empty without a timeline."""
    points = forecast.detail.timeline
    if len(points) < 2:
        return ""
    series = [
        (name.removesuffix("_bytes"), f"layer {name.removesuffix('_bytes')}", [getattr(p.bytes, name) for p in points])
        for name in MemoryBreakdown.model_fields
    ]
    marks = [("capacity", float(forecast.memory.capacity_bytes))]
    if measured is not None and measured.memory.peak_allocated_bytes is not None:
        marks.append(("measured peak", float(measured.memory.peak_allocated_bytes)))
    view = stack_view(
        "Memory over one step",
        f"Forecast of live bytes by category; the peak is {format_bytes(forecast.memory.peak_allocated_bytes)}.",
        [p.seconds for p in points],
        series,
        marks,
    )
    return draw_stack(view, format_seconds, format_bytes)


def memory_parts(forecast: Forecast) -> list[tuple[str, float, str]]:
    """Parts of the device's memory at the peak: CSS class, percent of the drawn width, name with size.

    Beside the breakdown: what allocator and driver hold, and what is added if unlucky.
    """
    memory = forecast.memory
    device = memory.device_bytes
    sizes = {name.removesuffix("_bytes"): value for name, value in memory.breakdown.model_dump().items()}
    sizes["reserved"] = max(0.0, device.expected - sum(memory.breakdown.model_dump().values()))
    sizes["unlucky"] = max(0.0, device.conservative - device.expected)
    names = {"reserved": "cache and driver", "unlucky": "if unlucky"}
    scale = _memory_scale(forecast)
    return [
        (name, round(100 * value / scale, 2), f"{names.get(name, name).replace('_', ' ')} {format_bytes(value)}")
        for name, value in sizes.items()
    ]


def _memory_scale(forecast: Forecast) -> float:
    return 1.02 * max(forecast.memory.capacity_bytes, forecast.memory.device_bytes.conservative)


def run_bars(forecast: Forecast, measured: Measurement | None) -> list[Bar]:
    """Phases of the whole run, of one that stopped early up to there."""
    if measured is None:
        return phase_bars(forecast.run.phases, None)
    return phase_bars(until_it_stopped(forecast, measured).run.phases, measured.run.phases)


def phase_bars(forecast: Record, measured: Record | None) -> list[Bar]:
    """Phases that take time in either, with bars on one scale."""
    pairs = []
    for name in type(forecast).model_fields:
        one, other = getattr(forecast, name), 0.0 if measured is None else getattr(measured, name)
        if one > 0 or other > 0:
            pairs.append((name.removesuffix("_seconds"), one, other))
    longest = max((max(one, other) for _, one, other in pairs), default=1.0)
    return [
        Bar(
            name=name,
            forecast=format_seconds(one),
            measured="–" if measured is None else format_seconds(other),
            forecast_width=round(100 * one / longest, 1),
            measured_width=round(100 * other / longest, 1),
        )
        for name, one, other in pairs
    ]


def step_charts(content: PageContent) -> list[str]:
    """Loss, its parts, learning rate and step times over the steps; none before the second step."""
    steps = content.steps
    if len(steps) < 2:
        return []
    numbers = [float(step.step) for step in steps]

    def line(name: str, style: str, values: Sequence[float], dots: bool = False) -> Line:
        return Line(name=name, style=style, points=list(zip(numbers, values, strict=True)), dots=dots)

    def whole(value: float) -> str:
        return f"{value:.0f}"

    losses = [line("loss", "line one", [s.loss for s in steps])]
    for index, name in enumerate([n for n in steps[0].details if n.endswith("loss")][:LOSS_PARTS_SHOWN]):
        losses.append(line(name, f"line part{index}", [s.details.get(name, 0.0) for s in steps]))
    names = ", ".join(each.name.replace("_", " ") for each in losses)
    band = content.forecast.step.seconds
    times = line_view(
        "Step time",
        "Seconds of each step; the band is the forecast of the mean step.",
        [line("step", "dot", [s.step_seconds for s in steps], dots=True)],
        bands=[Band(name="forecast", low=band.optimistic, high=band.conservative)],
    )
    rate = line_view("Learning rate", "By step.", [line("rate", "line one", [s.learning_rate for s in steps])])
    loss = line_view("Loss", f"By step: {names}.", losses)
    return [
        _figure("Loss", "by step", _legend(losses) + draw_lines(loss, whole, lambda v: f"{v:g}")),
        _figure(
            "Step time", "dots: measured; band: forecast of the mean step", draw_lines(times, whole, format_seconds)
        ),
        _figure("Learning rate", "after warm-up it decays to zero", draw_lines(rate, whole, lambda v: f"{v:.1e}")),
    ]


def curve_chart(curve: ResultCurve) -> str:
    """A figure of measured series with their intervals."""
    lines = curve_lines(curve)
    if not any(line.points for line in lines):
        return _figure(curve.title, f"{curve.up} over {curve.across}: no points. {curve.note}", "")
    svg = draw_lines(curve_view(curve, lines), lambda value: f"{value:g}", lambda value: f"{value:g}")
    return _figure(curve.title, f"{curve.up} over {curve.across}. {curve.note}", _legend(lines) + svg)


def _legend(lines: Sequence[Line]) -> str:
    """HTML list of line names beside their colours."""
    item = Markup(
        '<li><svg class="key" viewBox="0 0 14 8"><line class="{}" x1="0" x2="14" y1="4" y2="4"/></svg>{}</li>'
    )
    items = Markup("").join(item.format(line.style, line.name.replace("_", " ")) for line in lines)
    return str(Markup('<ul class="legend">{}</ul>').format(items))


def _figure(title: str, caption: str, svg: str) -> str:
    return str(Markup("<figure><figcaption><b>{}</b> {}</figcaption>{}</figure>").format(title, caption, Markup(svg)))


def flat(settings: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Settings as dotted paths and values."""
    rows: list[tuple[str, str]] = []
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            rows += flat(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)))
    return rows
