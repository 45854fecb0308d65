"""What the tab of runs shows, as rows and axes: computed here from the ledger, drawn elsewhere. No web library."""

from collections.abc import Mapping, Sequence
from typing import Any

from forerun.ledger.store import Ledger, RunRow
from forerun.records import Record
from forerun.runs.watching import RunView, view_of
from forerun.units import format_bytes, format_percent, format_seconds

Value = float | str
APART = {"name"}
"""Settings that say nothing of what a run does."""


MOST_SETTINGS = 5
"""Settings that get an axis; more cannot be read."""


class SeveralRuns(Record):
    """Runs of one name whose settings differ: what differs and what came of it; one line is one run."""

    name: str
    axes: list[str]
    labels: list[str]
    lines: list[list[Value]]
    """For each run its value on each axis."""


def list_rows(ledger: Ledger, runs: Sequence[RunRow]) -> list[dict[str, str]]:
    """One row for each run: its state, and the step as forecast beside the one measured."""
    rows = []
    for run in runs:
        forecast, measurement = ledger.forecast(run.id), ledger.measurement(run.id)
        expected = None if forecast is None else forecast.step.seconds.expected
        measured = None if measurement is None else measurement.step.seconds
        rows.append({
            "run": run.id, "name": run.name, "gpu": run.gpu, "state": run.state,
            "forecast": "" if expected is None else format_seconds(expected),
            "measured": "" if measured is None else format_seconds(measured),
            "off": format_percent(expected / measured - 1, signed=True) if expected and measured else "",
        })  # fmt: skip
    return rows


def beside(views: Sequence[RunView]) -> list[dict[str, str]]:
    """Forecast and measured of each run, a row for each quantity; columns end in the number of the run."""
    rows: dict[str, dict[str, str]] = {}
    for number, view in enumerate(views):
        needs, peak = view.forecast_allocated_bytes, view.peak_allocated_bytes
        quantities: list[tuple[str, str, str]] = [
            ("step time", _text(view.forecast_step_seconds, format_seconds), _text(view.step_seconds, format_seconds)),
            ("memory", _text(needs, format_bytes), _text(peak, format_bytes)),
            ("tokens/s", "", _text(view.tokens_per_second, "{:,.0f}".format)),
            ("loss", "", _text(view.loss, "{:.4f}".format)),
        ]  # fmt: skip
        if view.seconds_left is not None:
            quantities.append(("time left", _text(view.seconds_left.expected, format_seconds), ""))
        for what, forecast, measured in quantities:
            row = rows.setdefault(what, {"what": what})
            row[f"forecast{number}"], row[f"measured{number}"] = forecast, measured
    return [row for row in rows.values() if any(text for column, text in row.items() if column != "what")]


def scores(views: Sequence[RunView]) -> list[dict[str, str]]:
    """The metrics of each run, a row for each; those of baselines and of intervals after the others."""
    names = dict.fromkeys(name for view in views for name in view.metrics)
    return [
        {"what": name.replace("_", " ")}
        | {f"run{n}": f"{view.metrics[name]:.4f}" for n, view in enumerate(views) if name in view.metrics}
        for name in sorted(names, key=lambda name: "." in name)
    ]


def different_settings(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Settings by dotted path whose values are not all the same, with the value of each; None where one has none.

    Lists are left out: they are no place on an axis.
    """
    flat = [_flat(each) for each in settings]
    paths = dict.fromkeys(path for each in flat for path in each)
    values = {path: [each.get(path) for each in flat] for path in paths if path not in APART}
    return {
        path: each for path, each in values.items()
        if any(value != each[0] for value in each) and not any(isinstance(value, list) for value in each)
    }  # fmt: skip


def several_runs(ledger: Ledger, runs: Sequence[RunRow]) -> list[SeveralRuns]:
    """Each name of which two finished runs or more differ in their settings, newest first."""
    groups: dict[tuple[str, str, str], list[RunRow]] = {}
    for run in runs:
        groups.setdefault((run.name, run.workload, run.gpu), []).append(run)
    return [view for members in groups.values() if (view := _several(ledger, members)) is not None]


def _several(ledger: Ledger, runs: Sequence[RunRow]) -> SeveralRuns | None:
    views = [view_of(ledger, run.id) for run in runs if ledger.measurement(run.id) is not None]
    if len(views) < 2:
        return None
    ids = {view.run_id for view in views}
    different = different_settings([run.settings for run in runs if run.id in ids])
    if not different:
        return None
    paths = list(different)[:MOST_SETTINGS]
    score = _score(views)
    axes = [*paths, "step (ms)", "loss", *([score.replace("_", " ")] if score else [])]
    lines = [
        [*(_plain(different[path][n]) for path in paths), 1e3 * (view.step_seconds or 0.0),
         view.loss if view.loss is not None else "", *([view.metrics[score]] if score else [])]
        for n, view in enumerate(views)
    ]  # fmt: skip
    return SeveralRuns(name=runs[0].name, axes=axes, labels=[view.run_id for view in views], lines=lines)


def _score(views: Sequence[RunView]) -> str:
    """The first metric of all runs in which they differ, scores before losses; empty where there is none."""
    names = [name for name in views[0].metrics if all(name in view.metrics for view in views)]
    names.sort(key=lambda name: "loss" in name)
    return next((name for name in names if len({view.metrics[name] for view in views}) > 1), "")


def _plain(value: Any) -> Value:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _text(value: float | None, write: Any) -> str:
    return "" if value is None else write(value)
