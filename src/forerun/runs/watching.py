"""What a run in progress looks like from outside: from the ledger alone, so that any process may look. No torch.

Steps come to the ledger fifty at a time (`ledger/store.py`), so a view may be that far behind.
"""

import math
from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from forerun.ledger.store import Ledger, RunRow
from forerun.records import Forecast, Measurement, Range, Record, StepReport
from forerun.runs.eta import TimeLeft
from forerun.units import format_bytes, format_seconds

POINTS = 60
"""Most points of a curve; even, as pairs are put together."""
RUNNING = ("started", "resumed")
BARS = "▁▂▃▄▅▆▇█"
RECENT = 50
"""Latest steps whose pace counts."""


class RunView(Record):
    """A run at one moment; null is what is not known yet."""

    run_id: str
    name: str
    workload: str
    gpu: str
    state: str
    step: int
    total_steps: int | None
    loss: float | None
    losses: list[tuple[int, float]]
    """Step and mean loss since the point before, at most `POINTS` of them."""
    tokens_per_second: float | None
    step_seconds: float | None
    """The mean of the latest warm steps."""
    forecast_step_seconds: float | None
    peak_allocated_bytes: int | None
    forecast_allocated_bytes: int | None
    seconds_left: Range | None
    """Of training."""
    metrics: dict[str, float]
    """Scores of a finished run."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.state not in RUNNING


def view_of(ledger: Ledger, run_id: str) -> RunView:
    """The run of an id, a unique beginning of one, or `last`.

    Raises:
        RunNotFound: there is none, with the nearest.
    """
    row = ledger.run(run_id)
    return make_view(row, ledger.steps(row.id), ledger.forecast(row.id), ledger.measurement(row.id))


def make_view(
    row: RunRow, steps: Sequence[StepReport], forecast: Forecast | None, measurement: Measurement | None
) -> RunView:
    """The view of a run with these steps."""
    recent = [step for step in steps if step.is_warm][-RECENT:] or list(steps[-1:])
    seconds = sum(step.step_seconds for step in recent)
    peaks = [step.peak_allocated_bytes for step in steps if step.peak_allocated_bytes is not None]
    total = None if forecast is None else forecast.run.total_steps
    left: Range | None = None
    if forecast is not None and total is not None and row.state in RUNNING:
        clock = TimeLeft(forecast, max(total, steps[-1].step if steps else 0))
        for step in steps:
            left = clock.after(step)
    return RunView(
        run_id=row.id, name=row.name, workload=row.workload, gpu=row.gpu, state=row.state,
        step=steps[-1].step if steps else 0, total_steps=total, loss=steps[-1].loss if steps else None,
        losses=curve_of([(step.step, step.loss) for step in steps]),
        tokens_per_second=sum(step.tokens for step in recent) / seconds if seconds else None,
        step_seconds=seconds / len(recent) if recent else None,
        forecast_step_seconds=None if forecast is None else forecast.step.seconds.expected,
        peak_allocated_bytes=max(peaks, default=None),
        forecast_allocated_bytes=None if forecast is None else forecast.memory.peak_allocated_bytes,
        seconds_left=left, metrics={} if measurement is None else measurement.metrics,
    )  # fmt: skip


def curve_of(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most `POINTS` points, each the mean of as many neighbours; losses that are no numbers are left out."""
    usable = [(step, value) for step, value in points if value == value and abs(value) != float("inf")]
    width = -(-len(usable) // POINTS) or 1
    groups = [usable[begin : begin + width] for begin in range(0, len(usable), width)]
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


class RunningCurve:
    """A curve of at most `POINTS` points, however many values come: each is the mean of equally many."""

    def __init__(self) -> None:
        self.means: list[float] = []
        self._width = 1
        self._newest: list[float] = []

    def add(self, value: float) -> None:
        """Take a value; one that is no number is left out."""
        if not math.isfinite(value):
            return
        self._newest.append(value)
        if len(self._newest) == self._width:
            self.means.append(sum(self._newest) / self._width)
            self._newest = []
        if len(self.means) == POINTS:
            self.means = [(a + b) / 2 for a, b in zip(self.means[::2], self.means[1::2], strict=True)]
            self._width *= 2

    def line(self) -> str:
        """The curve as one line of text, with its ends."""
        ends = f"  {self.means[0]:.4f} → {self.means[-1]:.4f}" if self.means else ""
        return f"{bars(self.means)}{ends}"


def bars(values: Sequence[float]) -> str:
    """A curve in one line of text, lowest to highest."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in values)


def view_panel(view: RunView) -> Group:
    """The view for a terminal."""
    table = Table.grid(padding=(0, 2))
    of = "" if view.total_steps is None else f" of {view.total_steps}"
    table.add_row("step", f"{view.step}{of}")
    if view.loss is not None:
        first, last = view.losses[0][1] if view.losses else view.loss, view.loss
        table.add_row("loss", f"{bars([value for _, value in view.losses])}  {first:.4f} → {last:.4f}")
    if view.step_seconds is not None:
        beside = view.forecast_step_seconds
        table.add_row(
            "step time",
            format_seconds(view.step_seconds) + (f", forecast {format_seconds(beside)}" if beside is not None else ""),
        )
    if view.tokens_per_second is not None:
        table.add_row("tokens/s", f"{view.tokens_per_second:,.0f}")
    if view.peak_allocated_bytes is not None:
        beside = view.forecast_allocated_bytes
        table.add_row(
            "memory",
            format_bytes(view.peak_allocated_bytes) + (f", forecast {format_bytes(beside)}" if beside else ""),
        )
    if view.seconds_left is not None:
        left = view.seconds_left
        table.add_row("left", f"{format_seconds(left.optimistic)} to {format_seconds(left.conservative)}")
    for name, value in view.metrics.items():
        table.add_row(name.replace("_", " "), f"{value:.4f}")
    return Group(Text(f"{view.run_id}  {view.name} on {view.gpu}: {view.state}", style="bold"), table)
