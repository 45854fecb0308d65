"""One run on many GPUs, for the terminal."""

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forerun.plan.outcome import ComparisonRow, GpuComparison
from forerun.report.terminal import BAD, FAINT, GOOD, cost_text
from forerun.units import format_bytes, format_seconds

MOST_REFUSED = 8
"""GPUs on which it does not fit that get a line of their own."""
SIZES = ("batch.micro_batch_size", "batch.gradient_accumulation_steps")


def comparison_view(comparison: GpuComparison) -> RenderableType:
    """The choice, a row for each GPU by time, and what does not fit."""
    fitting = sorted((row for row in comparison.rows if row.fits), key=lambda row: row.run_seconds or 0.0)
    others = [row for row in comparison.rows if not row.fits]
    table = Table(title=f"{comparison.name} by GPU", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("", "gpu", "micro", "step", "run", "needs / has", "cost", "with"):
        table.add_column(column, justify="left" if column in ("", "gpu", "with") else "right", no_wrap=column != "with")
    for row in fitting:
        table.add_row(
            _mark(row, comparison), row.gpu, str(row.micro_batch_size), format_seconds(row.step_seconds or 0.0),
            f"{'' if row.is_full_forecast else '~'}{format_seconds(row.run_seconds or 0.0)}",
            f"{_number(row.device_bytes or 0.0)} / {format_bytes(row.capacity_bytes)}",
            "–" if row.cost is None else f"${row.cost:,.2f}", _change_text(row),
            style="" if row.keeps_limits else FAINT,
        )  # fmt: skip
    parts: list[RenderableType] = [_verdict(comparison), *([table] if fitting else [])]
    if fitting:
        note = "▶ chosen · ◆ no other is both faster and cheaper · ~ beside its steps taken over from another GPU"
        parts.append(Text(note, style=FAINT))
    parts += [Text(f"{row.gpu}: does not fit, {row.why_not}", style=BAD) for row in others[:MOST_REFUSED]]
    if len(others) > MOST_REFUSED:
        names = ", ".join(row.gpu for row in others[MOST_REFUSED:])
        parts.append(Text(f"Nor do these {len(others) - MOST_REFUSED} (--json says why): {names}", style=BAD))
    parts.append(Text(f"{comparison.traces} steps traced in {format_seconds(comparison.search_seconds)}", style=FAINT))
    return Group(*parts)


def _verdict(comparison: GpuComparison) -> Text:
    choice = next((row for row in comparison.rows if row.gpu == comparison.chosen), None)
    if choice is not None:
        how = "cheapest in time" if comparison.deadline_seconds and comparison.budget is None else "fastest"
        headline = f"{choice.gpu}, the {how}: {format_seconds(choice.run_seconds or 0.0)}, {cost_text(choice.cost)}"
        return Text(headline, style=f"bold {GOOD}")
    reason = "No GPU keeps the limits" if any(row.fits for row in comparison.rows) else "It fits none of these GPUs"
    return Text(f"{reason}; `forerun plan` says what would help.", style=f"bold {BAD}")


def _mark(row: ComparisonRow, comparison: GpuComparison) -> str:
    return "▶" if row.gpu == comparison.chosen else "◆" if row.is_on_front else ""


def _change_text(row: ComparisonRow) -> str:
    return " ".join(f"{change.path}={change.new}" for change in row.changes if change.path not in SIZES)


def _number(size: float) -> str:
    return format_bytes(size).split(" ")[0]
