"""A sweep as tables: what is to run before it starts, and forecast beside measured after."""

from collections.abc import Callable, Sequence

from forerun.records import Forecast, Measurement
from forerun.report.tables import Cell, ResultTable
from forerun.units import GIGA, KILO, MEGA, format_bytes, format_percent, format_seconds

PARTS = ("training", "evaluation", "checkpoint")
"""Parts of a run that a sweep's forecast shows, by their field of `RunPhases` without the unit."""


def plan_table(variants: Sequence[tuple[str, Forecast, str]], seconds: float, cost: float | None) -> ResultTable:
    """Forecast of each variant (name, forecast, state), and of all that is still to run."""
    priced = any(forecast.run.cost is not None for _, forecast, _ in variants)
    several = len({forecast.gpu for _, forecast, _ in variants}) > 1
    rows: list[list[Cell]] = []
    for name, forecast, state in variants:
        row: list[Cell] = [
            name,
            *([forecast.gpu] if several else []),
            _count(forecast.parameters.trainable),
            format_seconds(forecast.step.seconds.expected),
            format_bytes(forecast.memory.peak_allocated_bytes),
            format_seconds(forecast.run.seconds.expected),
            *(format_seconds(getattr(forecast.run.phases, f"{part}_seconds")) for part in PARTS),
            f"{forecast.step.samples_per_second:,.1f}",
        ]
        price: list[Cell] = [None if forecast.run.cost is None else f"${forecast.run.cost:.2f}"]
        rows.append([*row, *(price if priced else []), state])
    cost_note = "" if cost is None else f", ${cost:.2f}"
    warnings = [forecast.warnings for _, forecast, _ in variants]
    of_all = [warning for warning in dict.fromkeys(warnings[0]) if all(warning in each for each in warnings)]
    left = f"Still to run: {format_seconds(seconds)} in all{cost_note}, one run after the other."
    if all(state != "waiting" for _, _, state in variants):
        left = "Nothing is left to run."
    if several:
        left = "Each row is a run of its own; none was made."
    return ResultTable(
        title="Forecast of the sweep",
        note=" ".join([left, *of_all]),
        columns=[
            "variant",
            *(["GPU"] if several else []),
            "trainable",
            "step",
            "allocated",
            "run",
            *PARTS,
            "rows/s",
            *(["cost"] if priced else []),
            "state",
        ],
        rows=rows,
    )


def accuracy_table(runs: Sequence[tuple[str, Forecast, Measurement]]) -> ResultTable:
    """Forecast beside measured for each finished variant (name, forecast, measurement)."""
    rows: list[list[Cell]] = [
        [
            name,
            _count(measured.parameters.trainable),
            _pair(forecast.step.seconds.expected, measured.step.seconds, format_seconds),
            _pair(forecast.memory.peak_allocated_bytes, measured.memory.peak_allocated_bytes, format_bytes),
            _pair(forecast.run.seconds.expected, measured.run.seconds, format_seconds),
        ]
        for name, forecast, measured in runs
    ]
    both = (sum(f.run.seconds.expected for _, f, _ in runs), sum(m.run.seconds for _, _, m in runs))
    return ResultTable(
        title="Forecast beside measured",
        note=f"Forecast / measured, and (forecast − measured) ÷ measured; each forecast was made before its run. "
        f"All of them: {_pair(*both, format_seconds)}.",
        columns=["variant", "trainable", "step", "allocated", "run"],
        rows=rows,
    )


def _count(parameters: int) -> str:
    """Parameters as thousands, millions or billions."""
    for size, unit in ((GIGA, "B"), (MEGA, "M"), (KILO, "k")):
        if parameters >= size:
            return f"{parameters / size:.3g}{unit}"
    return str(parameters)


def _pair(forecast: float, measured: float | None, show: Callable[[float], str]) -> str:
    if not measured:
        return show(forecast)
    return f"{show(forecast)} / {show(measured)}, {format_percent(forecast / measured - 1, signed=True)}"
