"""Claims of a finished run of ours, so that its own report is held against the rules that documents are held against.

What a run reports: counts, parts and totals, rates, the size of its checkpoints, its recipe's criteria as the run's
verdict has them, floors of its losses, and the forecast, whose outcome it is. Figures of the ledger are exact, and
times of single steps differ, so times and rates are compared as "about".
"""

import statistics
from collections.abc import Sequence
from typing import Any

from forerun.audit.claims import ClaimsFile, claims_from
from forerun.errors import InvalidSettings
from forerun.ledger.store import Ledger, RunRow
from forerun.records import Forecast, Measurement, Range, StepReport, Verdict
from forerun.verify.compare import Criterion, verify
from forerun.verify.early_stop import until_it_stopped

WEIGHT_BYTES = 2.0
"""Least bytes of a trained parameter in a checkpoint: its weight in 16 bits, without optimizer state."""
FLOORS = {"_loss": "_floor"}
"""Ending of a metric → ending of the metric that is its floor."""
FORECAST_OF = {
    "run.seconds": "forecast of the run", "step.seconds": "forecast of a step", "device_bytes": "forecast of memory",
}  # fmt: skip
"""Field of a verdict's row → name of the claim about its range."""
SHARE_INSIDE = 0.8
"""Share of outcomes between optimistic and conservative, the 10 and 90 % quantiles."""
Content = dict[str, Any]


def claims_of_run(ledger: Ledger, run_id: str, criteria: Sequence[Criterion] = ()) -> ClaimsFile:
    """Claims of the run of that id, a unique beginning of it, or `last`; `criteria` are its recipe's targets.

    Raises:
        RunNotFound: no such run.
        InvalidSettings: it has not finished.
    """
    row = ledger.run(run_id)
    forecast, measurement = ledger.forecast(row.id), ledger.measurement(row.id)
    if forecast is None or measurement is None:
        missing = "forecast" if forecast is None else "measurement"
        raise InvalidSettings(f"Run {row.id} is {row.state} and has no {missing}. Finish it with --resume {row.id}.")
    forecast, steps = until_it_stopped(forecast, measurement), ledger.steps(row.id)
    claims = [
        *_counts(forecast, measurement, steps), *_memory(forecast, measurement), *_times(measurement, steps),
        *_rates(row, forecast, measurement), *_outcomes(forecast, measurement, criteria),
        *_floors(row, measurement.metrics),
        *_criteria(row, verify(row.id, forecast, measurement, criteria), measurement.metrics, criteria),
    ]  # fmt: skip
    return claims_from({"document": f"Run {row.id} ({row.name})", "source": f"ledger, run {row.id}", "claims": claims})


def _claim(label: str, quote: str, **check: Any) -> Content:
    return {"id": label, "quote": quote, **check}


def _counts(forecast: Forecast, measured: Measurement, steps: Sequence[StepReport]) -> list[Content]:
    last = max((report.step for report in steps), default=0)
    return [
        _claim(
            "steps", f"{measured.run.total_steps} optimizer steps", kind="agree", quantity="optimizer steps",
            stated={"measurement": measured.run.total_steps, "forecast": forecast.run.total_steps, "last step": last},
        ),
        _claim(
            "parameters", f"{measured.parameters.total:,} parameters", kind="agree", quantity="parameters",
            stated={"measurement": measured.parameters.total, "forecast": forecast.parameters.total},
        ),
        _claim(
            "checkpoint", f"a checkpoint of {measured.run.checkpoint_bytes:,} B", kind="artefact",
            claimed=f"{measured.run.checkpoint_bytes} B", parameters=measured.parameters.trainable,
            bytes_per_parameter=WEIGHT_BYTES,
        ),
    ]  # fmt: skip


def _memory(forecast: Forecast, measured: Measurement) -> list[Content]:
    parts = {name: f"{size:,} B" for name, size in forecast.memory.breakdown.model_dump().items()}
    peak = forecast.memory.peak_allocated_bytes
    claims = [_claim(
        "memory parts", f"a forecast peak of {peak:,} B", kind="sum", unit="size", parts=parts, total=f"{peak:,} B"
    )]  # fmt: skip
    allocated, reserved = measured.memory.peak_allocated_bytes, measured.memory.peak_reserved_bytes
    if allocated is not None and reserved is not None:
        direction = "larger" if reserved > allocated else "same"
        quote = f"{reserved:,} B reserved for {allocated:,} B allocated"
        claims.append(_claim(
            "reserved", quote, kind="change", unit="size", before=f"{allocated} B", after=f"{reserved} B",
            said=direction,
        ))  # fmt: skip
    return claims


def _times(measured: Measurement, steps: Sequence[StepReport]) -> list[Content]:
    phases = {name: f"{seconds:.6g} s" for name, seconds in measured.run.phases.model_dump().items()}
    whole = measured.run.seconds
    claims = [_claim(
        "run phases", f"{whole:.1f} s in all", kind="sum", unit="time", parts=phases, total=f"~{whole:.6g} s"
    )]  # fmt: skip
    if steps:
        mean = statistics.fmean(report.step_seconds for report in steps)
        training = measured.run.phases.training_seconds
        quote = f"{training:.1f} s of training in {len(steps)} steps of {mean:.4g} s in the mean"
        claims.append(_claim(
            "step x steps", quote, kind="run-time", step=f"{mean:.6g} s", steps=len(steps), claimed=f"~{training:.6g} s"
        ))  # fmt: skip
    return claims


def _rates(row: RunRow, forecast: Forecast, measured: Measurement) -> list[Content]:
    step = forecast.step
    peak = step.model_flops / (step.mfu * step.seconds.expected)
    seconds, ratio = measured.step.seconds, measured.step.tokens_per_second / measured.step.samples_per_second
    return [
        _claim(
            "flop rate", f"a step of {seconds:.4g} s on {row.gpu}", kind="rate", flops=step.model_flops,
            seconds=seconds, peak_flops_per_second=peak,
        ),
        _claim(
            "throughput", f"{measured.step.tokens_per_second:,.0f} tokens/s, {ratio:.4g} tokens a sample",
            kind="product", factors=[f"{measured.step.samples_per_second:.6g}", f"{ratio:.6g}"],
            claimed=f"~{measured.step.tokens_per_second:.6g}",
        ),
    ]  # fmt: skip


def _outcomes(forecast: Forecast, measured: Measurement, criteria: Sequence[Criterion]) -> list[Content]:
    """Ranges beside what came out; the verdict judges those that a criterion is about."""
    judged = {criterion.quantity for criterion in criteria}
    pairs: list[tuple[str, str, Range, float | None]] = [
        ("run.seconds", "s", forecast.run.seconds, measured.run.seconds),
        ("step.seconds", "s", forecast.step.seconds, measured.step.seconds),
        ("device_bytes", "B", forecast.memory.device_bytes, measured.memory.device_bytes),
    ]
    return [
        _claim(
            FORECAST_OF[name], f"{band.optimistic:.4g} to {band.conservative:.4g} {unit}", kind="outcome",
            claimed=[f"{band.optimistic:.6g} {unit}", f"{band.conservative:.6g} {unit}"],
            unit="size" if unit == "B" else "time",
            recorded=f"{value:.6g} {unit}", source="the run's measurement",
            share_inside=SHARE_INSIDE,
        )
        for name, unit, band, value in pairs if value is not None and name not in judged
    ]  # fmt: skip


def _criteria(row: RunRow, verdict: Verdict, metrics: dict[str, float], criteria: Sequence[Criterion]) -> list[Content]:
    """The verdict's criteria, each a claim: what the verdict says and what the audit says is one list."""
    return [
        _claim(
            criterion.name, result.rule, kind="criterion", rule=result.rule, value=result.value, passed=result.passed,
            judged=result.judged, source=f"verdict of run {row.id}",
            open=result.open or _may_be_luck(criterion, metrics),
        )
        for criterion, result in zip(criteria, verdict.criteria, strict=True)
    ]  # fmt: skip


def _may_be_luck(criterion: Criterion, metrics: dict[str, float]) -> str:
    """Why a score above the baselines settles nothing: its interval holds the best of them; empty otherwise.

    Where the interval of the difference is known the verdict has looked at that.
    """
    bounds = {} if f"{criterion.quantity}.gap.low" in metrics else criterion.bounding(metrics)
    end = "low" if criterion.is_upward else "high"
    worst = metrics.get(f"{criterion.quantity}_{end}", metrics.get(f"{criterion.quantity}.{end}"))
    if not bounds or worst is None:
        return ""
    name, best = next(iter(bounds.items()))
    is_open = worst <= best if criterion.is_upward else worst >= best
    return f"it may be no better than {name}: its 95 % interval ends at {worst:.4g}" if is_open else ""


def _floors(row: RunRow, metrics: dict[str, float]) -> list[Content]:
    return [_floor(row, name, metrics) for name in metrics if _floor_of(name, metrics)]


def _floor(row: RunRow, name: str, metrics: dict[str, float]) -> Content:
    return _claim(
        f"floor of {name}", f"{name} {metrics[name]:.4g}", kind="floor", name=name, claimed=f"{metrics[name]:.6g}",
        floor=metrics[_floor_of(name, metrics)], evidence=f"run {row.id}",
    )  # fmt: skip


def _floor_of(name: str, metrics: dict[str, float]) -> str:
    """The metric that is the floor of another; empty where there is none."""
    for ending, floor in FLOORS.items():
        if name.endswith(ending) and name.removesuffix(ending) + floor in metrics:
            return name.removesuffix(ending) + floor
    return ""
