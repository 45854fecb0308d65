"""Forecast against measurement: one row per quantity, the recipe's criteria, and the first cause to look at.

Predicted and measured share names and units, so a row is a subtraction: relative_error = (forecast - measured) /
measured, positive when the forecast was too high.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal

from forerun.records import CriterionResult, Forecast, Measurement, Range, Record, Verdict, VerdictRow
from forerun.units import format_bytes, format_percent, format_seconds
from forerun.verify.causes import causes
from forerun.verify.contention import contention, slowdown
from forerun.verify.early_stop import until_it_stopped

Unit = Literal["bytes", "seconds", "count", "per second"]
NEGLIGIBLE_SHARE = 0.02
"""Phases below this share of their whole, in forecast and measurement, are left out of the cause."""
LARGE_ERROR = 0.1
"""A miss above this is worth a cause."""
CONTENDED_SHARE = 0.25
"""Share of all processor time that others may use; above it a time that was longer than forecast is not judged."""


NOT_TOLD_APART = "not told apart from the strongest baseline"
"""Name of a result whose score is the best, and whose difference from the strongest baseline may be 0."""
EVERY_BASELINE = "*."
"""Beginning of a bound that is the best of all baselines' metrics of one name: `*.macro_f1`."""


class Criterion(Record):
    """One criterion of success: `quantity` is a metric, or the field of the row whose absolute error is bounded."""

    name: str
    quantity: str
    comparison: Literal["above", "below", "error within"]
    bound: float | str
    """A number, or the name of another metric; a star stands for each baseline that has it, and the best one counts."""
    margin: float = 0.0
    """Amount added to the bound."""

    def bounding(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """The metrics that `bound` names, the hardest to beat first; empty for a number or what was not measured."""
        names = [name for name in metrics if _is_like(name, self.bound)] if isinstance(self.bound, str) else []
        return {name: metrics[name] for name in sorted(names, key=metrics.__getitem__, reverse=self.is_upward)}

    def bound_in(self, metrics: Mapping[str, float]) -> float | None:
        """The number to reach, margin included; None where it was not measured."""
        best = next(iter(self.bounding(metrics).values()), None) if isinstance(self.bound, str) else self.bound
        return None if best is None else best + self.margin

    @property
    def is_upward(self) -> bool:
        """Whether more is better."""
        return self.comparison == "above"

    @property
    def is_of_baselines(self) -> bool:
        """Whether the bound is the best of all baselines."""
        return isinstance(self.bound, str) and self.bound.startswith(EVERY_BASELINE)


def verify(run_id: str, forecast: Forecast, measurement: Measurement, criteria: Sequence[Criterion] = ()) -> Verdict:
    """The verdict on one run; of one that stopped early, on the time up to there."""
    forecast = until_it_stopped(forecast, measurement)
    rows = compare(forecast, measurement)
    others, longer = contention(forecast, measurement), slowdown(forecast, measurement)
    results = [_fairly(_judge(each, measurement, rows), each, rows, others, longer) for each in criteria]
    return Verdict(
        run_id=run_id,
        rows=rows,
        criteria=results,
        first_cause=first_cause(rows),
        causes=causes(forecast, measurement),
        stopped_early=measurement.run.stopped_early,
        better_baseline=better_baseline(measurement.metrics, criteria),
        passed=all(result.passed or not result.judged for result in results),
    )


def _fairly(
    result: CriterionResult, criterion: Criterion, rows: Sequence[VerdictRow], others: float, longer: float
) -> CriterionResult:
    """A time missed because it took longer is not judged where others used much, or may have made it `longer` so."""
    row = next((row for row in rows if row.field == criterion.quantity), None)
    is_time = criterion.comparison == "error within" and row is not None and row.unit in ("seconds", "per second")
    if result.passed or others == 0 or not is_time or row is None:
        return result
    shorter, longest = (row.forecast, row.measured) if row.unit == "seconds" else (row.measured, row.forecast)
    if longest <= shorter:  # others' load makes nothing faster
        return result
    bound = 0.0 if isinstance(criterion.bound, str) else criterion.bound
    reason = f"not judged, others used {format_percent(others)} of the processors"
    if others > CONTENDED_SHARE:
        why = f"{reason} (more than {format_percent(CONTENDED_SHARE)})"
    elif shorter * longer >= longest * (1 - bound):
        why = f"{reason}, which makes it up to {longer:.2f} times as long"
    else:
        return result
    return result.model_copy(update={"rule": f"{result.rule}: {why}", "judged": False})


def better_baseline(metrics: Mapping[str, float], criteria: Sequence[Criterion]) -> str:
    """The strongest baseline with both figures, where a criterion asks the model to beat all and one beats it."""
    for criterion in criteria:
        own, bounds = metrics.get(criterion.quantity), criterion.bounding(metrics)
        if own is None or not bounds or not criterion.is_of_baselines:
            continue
        name, best = next(iter(bounds.items()))
        if best > own if criterion.is_upward else best < own:
            method = name.removesuffix(str(criterion.bound)[len(EVERY_BASELINE) - 1 :])
            return f"{method} is the right choice here: {criterion.quantity} {best:.3f} against the model's {own:.3f}"
    return ""


def _is_like(name: str, pattern: str) -> bool:
    """Whether a star, for one part of a metric's name, makes them the same."""
    return name.count(".") == pattern.count(".") and fnmatchcase(name, pattern)


def failure_line(criteria: Sequence[CriterionResult], by: str = "") -> str:
    """One line on the criteria that failed, for the end of a command's messages; empty where none did."""
    failures = [result for result in criteria if result.judged and not result.passed]
    each = "; ".join(f"{result.name}: {result.value:.3f} ({result.rule})" for result in failures)
    return f"{len(failures)} of {len(criteria)} criteria failed{by}: {each}." if failures else ""


def compare(forecast: Forecast, measurement: Measurement) -> list[VerdictRow]:
    """Rows of everything that was both forecast and measured, memory first."""
    memory, measured_memory = forecast.memory, measurement.memory
    row = quantity_row
    rows = [
        row("peak_allocated_bytes", "bytes", memory.peak_allocated_bytes, measured_memory.peak_allocated_bytes),
        row("peak_reserved_bytes", "bytes", memory.peak_reserved_bytes, measured_memory.peak_reserved_bytes),
        row("device_bytes", "bytes", memory.device_bytes, measured_memory.device_bytes),
        row("step.seconds", "seconds", forecast.step.seconds, measurement.step.seconds),
        *_phases("step", forecast.step.phases, measurement.step.phases),
        row("run.seconds", "seconds", forecast.run.seconds, measurement.run.seconds),
        *_phases("run", forecast.run.phases, measurement.run.phases),
    ]
    counts = () if measurement.run.stopped_early else ("total_steps", "checkpoints_written")
    rows += [row(name, "count", getattr(forecast.run, name), getattr(measurement.run, name)) for name in counts]
    rows.append(row("checkpoint_bytes", "bytes", forecast.run.checkpoint_bytes, measurement.run.checkpoint_bytes))
    rates = ("tokens_per_second", "samples_per_second")
    rows += [row(name, "per second", getattr(forecast.step, name), getattr(measurement.step, name)) for name in rates]
    return [each for each in rows if each is not None]


def _phases(prefix: str, forecast: Record, measured: Record) -> list[VerdictRow | None]:
    pairs = [(name, getattr(forecast, name), getattr(measured, name)) for name in type(forecast).model_fields]
    return [quantity_row(f"{prefix}.{name}", "seconds", f, m) for name, f, m in pairs if f and m]


def quantity_row(field: str, unit: Unit, forecast: Range | float, measured: float | None) -> VerdictRow | None:
    """Row of one quantity; None where it was not measured."""
    if measured is None:
        return None
    expected = forecast.expected if isinstance(forecast, Range) else forecast
    inside = forecast.optimistic <= measured <= forecast.conservative if isinstance(forecast, Range) else None
    error = None if measured == 0 else (expected - measured) / measured
    return VerdictRow(
        field=field, unit=unit, forecast=expected, measured=measured, relative_error=error, inside_range=inside
    )


def _judge(criterion: Criterion, measurement: Measurement, rows: Sequence[VerdictRow]) -> CriterionResult:
    if criterion.comparison != "error within":
        return judge(criterion, measurement.metrics)
    errors = {row.field: row.relative_error for row in rows}
    error = errors.get(criterion.quantity)
    value = float("inf") if error is None else abs(error)
    rule = f"error of {criterion.quantity} within {format_percent(float(criterion.bound))}"
    passed = value <= float(criterion.bound)
    return CriterionResult(name=criterion.name, rule=rule, value=value, passed=passed)


def judge(criterion: Criterion, metrics: Mapping[str, float]) -> CriterionResult:
    """A criterion on a score: the metric beside a number, another metric or the best of several."""
    value, bound, bound_text = metrics.get(criterion.quantity), criterion.bound_in(metrics), str(criterion.bound)
    if isinstance(criterion.bound, str):
        bounds = criterion.bounding(metrics)
        bound_text = next(iter(bounds), bound_text) + (f" {criterion.margin:+g}" if criterion.margin else "")
        bound_text += "" if bound is None else f" = {bound:.3f}"
        bound_text += f", the best of {len(bounds)}" if len(bounds) > 1 else ""
    rule = f"{criterion.quantity} {criterion.comparison} {bound_text}"
    if value is None or bound is None:
        missing = criterion.quantity if value is None else criterion.bound
        return CriterionResult(name=criterion.name, rule=f"{rule}: {missing} was not measured", value=0.0, passed=False)
    passed = value > bound if criterion.is_upward else value < bound
    may_be_luck = luck(criterion, metrics) if passed else ""
    name = NOT_TOLD_APART if may_be_luck else criterion.name
    return CriterionResult(name=name, rule=rule, value=value, passed=passed, open=may_be_luck)


def luck(criterion: Criterion, metrics: Mapping[str, float]) -> str:
    """Why a score above all baselines may be luck, and the remedy; empty where it is not, or no interval is known.

    The interval is that of the difference (`macro_f1.gap.low`), else that of the score, with the baseline as exact.
    """
    bounds = criterion.bounding(metrics) if criterion.is_of_baselines else {}
    best, bound = next(iter(bounds.items()), ("", 0.0))
    ends = [metrics.get(f"{criterion.quantity}.gap.{end}") for end in ("low", "high")]
    is_paired = None not in ends
    if not is_paired:
        ends = [metrics.get(f"{criterion.quantity}.{end}") for end in ("low", "high")]
        ends = [None if end is None else end - bound for end in ends]
    low, high = ends
    if not bounds or low is None or high is None or not low <= 0 <= high:
        return ""
    method = best.removesuffix(f".{criterion.quantity}")
    how = "" if is_paired else ", the baseline taken as exact"
    return (
        f"not told apart from {method}: the difference is {low:+.3f} to {high:+.3f} (95 %{how}). More test rows "
        f"(evaluation.test_examples, data.test) tell; or train longer or on more rows"
    )


def first_cause(rows: Sequence[VerdictRow]) -> str:
    """A sentence on what to look at first, with figures; empty when nothing missed by more than a tenth."""
    by_field = {row.field: row for row in rows}
    steps = by_field.get("total_steps")
    if steps is not None and steps.forecast != steps.measured:
        return (
            f"The run made {steps.measured:.0f} steps, forecast {steps.forecast:.0f}: look at the data size and the "
            f"schedule first, every total follows from them."
        )
    for field, prefix in (("step.seconds", "step."), ("run.seconds", "run.")):
        whole = by_field.get(field)
        if whole is not None and _missed(whole):
            return _largest_part(whole, [r for r in rows if r.field.startswith(prefix) and r.field != field])
    for field in ("peak_allocated_bytes", "peak_reserved_bytes", "device_bytes"):
        row = by_field.get(field)
        if row is not None and _missed(row):
            return (
                f"{field} was {format_bytes(row.measured)}, forecast {format_bytes(row.forecast)} "
                f"({format_percent(row.relative_error or 0, signed=True)}): {_memory_hint(field)}"
            )
    return ""


def _missed(row: VerdictRow) -> bool:
    return row.relative_error is not None and abs(row.relative_error) > LARGE_ERROR


def _largest_part(whole: VerdictRow, parts: Sequence[VerdictRow]) -> str:
    miss = whole.forecast - whole.measured
    summary = f"{whole.field} took {format_seconds(whole.measured)}, forecast {format_seconds(whole.forecast)}"
    large = [p for p in parts if max(p.forecast, p.measured) > NEGLIGIBLE_SHARE * max(whole.forecast, whole.measured)]
    same_way = [p for p in large if (p.forecast - p.measured) * miss > 0]
    if not same_way:
        return f"{summary}; no single phase explains it."
    worst = max(same_way, key=lambda p: abs(p.forecast - p.measured))
    share = (worst.forecast - worst.measured) / miss
    return (
        f"{summary}. First cause: {worst.field.partition('.')[2].removesuffix('_seconds')} took "
        f"{format_seconds(worst.measured)}, forecast {format_seconds(worst.forecast)}, {share:.0%} of the miss."
    )


def _memory_hint(field: str) -> str:
    return {
        "peak_allocated_bytes": "compare the longest batch and the optimizer's implementation with the trace.",
        "peak_reserved_bytes": "the allocator was fragmented in another way than the replay.",
        "device_bytes": "look at what lives outside the allocator: libraries, and other parts of the same process.",
    }[field]
