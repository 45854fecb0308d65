"""A measured step beside its forecast, and its causes, for the terminal."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forerun.report.terminal import FAINT, GOOD, quantity_text
from forerun.units import format_bytes, format_percent, format_seconds
from forerun.verify.miss import MissCause, MissExplanation, MissTerm

WARN = "yellow"


def miss_view(miss: MissExplanation) -> RenderableType:
    """The miss, its terms, the causes by distance, and what to do next."""
    return Group(_misses(miss), *_terms(miss), _causes(miss), *_last_lines(miss))


def _misses(miss: MissExplanation) -> Table:
    table = Table("", "forecast", "measured", "error", "", title=f"A step on {miss.gpu}", title_justify="left")
    for row in miss.rows:
        error = "–" if row.relative_error is None else format_percent(row.relative_error, signed=True)
        mark = {None: "", True: "in range", False: "out of range"}[row.inside_range]
        name = row.field.replace("_bytes", "").replace("_", " ")
        table.add_row(name, quantity_text(row, row.forecast), quantity_text(row, row.measured), error, mark)
    return table


def _terms(miss: MissExplanation) -> list[Text]:
    if miss.as_forecast:
        return [Text("All of it lies inside the spread of the forecast: there may be nothing to explain.", GOOD)]
    return [Text(f"Off by most: {_term_text(term)}", WARN) for term in miss.worst_terms]


def _term_text(term: MissTerm) -> str:
    show = format_seconds if term.field.endswith("_seconds") else format_bytes
    name = term.field.rpartition("_")[0].replace("_", " ")
    return f"{name}, forecast {show(term.forecast)}, {show(term.nearest)} under the nearest cause."


def _causes(miss: MissExplanation) -> Table:
    table = Table("cause", "step", "memory", "distance", title="What would explain it", title_justify="left")
    for cause in miss.causes:
        style = GOOD if cause.is_near else ""
        table.add_row(
            Text(_cause_text(cause), style),
            format_seconds(cause.step_seconds) if miss.observation.seconds is not None else "–",
            format_bytes(cause.memory_bytes) if miss.observation.memory else "–",
            f"{cause.distance:.1f}",
        )
    return table


def _cause_text(cause: MissCause) -> str:
    return f"{cause.text} (--set {cause.change.replace(' ', ' --set ')})" if cause.change else cause.text


def _last_lines(miss: MissExplanation) -> list[Text]:
    lines = [Text(
        f"{miss.tried} alternatives were forecast. Distance: standard deviations from every measured number at once, "
        f"the cause's own likelihood included; green ones meet them all.", FAINT,
    )]  # fmt: skip
    if miss.not_tried:
        lines.append(Text(f"Not tried: {miss.not_tried}.", FAINT))
    if not any(cause.is_near for cause in miss.causes):
        lines.append(Text("No cause meets every number: please report the settings with both numbers.", WARN))
    if miss.is_kept:
        lines.append(Text("Kept: the next forecasts on this GPU learn its time. Memory is not learned.", GOOD))
    elif miss.observation.seconds is not None:
        lines.append(Text("Keep it for the next forecasts with --keep.", FAINT))
    return lines
