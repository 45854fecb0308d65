"""Claims of a finished run of ours, so that its own report is held against the rules that documents are held against.

What a run reports: counts, parts and totals, rates, the size of its checkpoints, its metrics beside the baselines of
the same run and the recipe's targets, and the forecast, whose outcome it is. Figures of the ledger are exact, and times
of single steps differ, so times and rates are compared as "about".
"""

import statistics
from collections.abc import Sequence
from typing import Any

from forerun.audit.claims import ClaimsFile, claims_from
from forerun.errors import InvalidSettings
from forerun.ledger.store import Ledger, RunRow
from forerun.records import Forecast, Measurement, Range, StepReport
from forerun.verify.compare import Criterion

WEIGHT_BYTES = 2.0
"""Least bytes of a trained parameter in a checkpoint: its weight in 16 bits, without optimizer state."""
FLOORS = {"_loss": "_floor"}
"""Ending of a metric → ending of the metric that is its floor."""
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
    steps = ledger.steps(row.id)
    claims = [
        *_counts(forecast, measurement, steps), *_memory(forecast, measurement), *_times(measurement, steps),
        *_rates(row, forecast, measurement), *_outcomes(forecast, measurement),
        *_metrics(row, measurement.metrics, criteria),
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


def _outcomes(forecast: Forecast, measured: Measurement) -> list[Content]:
    pairs: list[tuple[str, str, Range, float | None]] = [
        ("forecast of the run", "s", forecast.run.seconds, measured.run.seconds),
        ("forecast of a step", "s", forecast.step.seconds, measured.step.seconds),
        ("forecast of memory", "B", forecast.memory.device_bytes, measured.memory.device_bytes),
    ]
    return [
        _claim(
            name, f"{band.optimistic:.4g} to {band.conservative:.4g} {unit}", kind="outcome",
            claimed=[f"{band.optimistic:.6g} {unit}", f"{band.conservative:.6g} {unit}"],
            unit="size" if unit == "B" else "time",
            recorded=f"{value:.6g} {unit}", source="the run's measurement",
        )
        for name, unit, band, value in pairs if value is not None
    ]  # fmt: skip


def _metrics(row: RunRow, metrics: dict[str, float], criteria: Sequence[Criterion]) -> list[Content]:
    claims = [_floor(row, name, metrics) for name in metrics if _floor_of(name, metrics)]
    for criterion in criteria:
        value = metrics.get(criterion.quantity)
        if value is None or _floor_of(criterion.quantity, metrics) or criterion.comparison == "error within":
            continue
        if isinstance(criterion.bound, str) and criterion.bound in metrics:
            claims.append(_against_baseline(row, criterion, value, metrics[criterion.bound]))
        elif not isinstance(criterion.bound, str):
            sign = ">" if criterion.comparison == "above" else "<"
            claims.append(_claim(
                criterion.name, f"{criterion.quantity} {sign} {criterion.bound:g}", kind="outcome",
                claimed=f"{sign} {criterion.bound}", recorded=f"{value:.6g}", source=f"run {row.id}",
            ))  # fmt: skip
    return [*claims, *_beside_all(row, metrics, criteria)]


def _beside_all(row: RunRow, metrics: dict[str, float], criteria: Sequence[Criterion]) -> list[Content]:
    """Each quantity that the targets are about beside every other method of the same run that has it."""
    claims = []
    for quantity, higher in {c.quantity: c.comparison == "above" for c in criteria if "." not in c.quantity}.items():
        others = {name: value for name, value in metrics.items() if name.endswith(f".{quantity}")}
        if others and quantity in metrics:
            claims.append(_claim(
                f"{quantity} beside all", f"{quantity} {metrics[quantity]:.4g}", kind="metric", name=quantity,
                claimed=_interval(quantity, metrics), higher_is_better=higher, baselines=others, source=f"run {row.id}",
                evidence=f"run {row.id}",
            ))  # fmt: skip
    return claims


def _interval(quantity: str, metrics: dict[str, float]) -> list[str] | str:
    """A metric with the ends of its interval, where the run has them."""
    ends = [metrics.get(f"{quantity}_{end}") for end in ("low", "high")]
    return f"{metrics[quantity]:.6g}" if None in ends else [f"{end:.6g}" for end in ends]


def _against_baseline(row: RunRow, criterion: Criterion, value: float, baseline: float) -> Content:
    return _claim(
        criterion.name, f"{criterion.quantity} {value:.4g}", kind="metric", name=criterion.quantity,
        claimed=f"{value:.6g}",
        higher_is_better=criterion.comparison == "above", baselines={str(criterion.bound): baseline},
        source=f"run {row.id}", evidence=f"run {row.id}",
    )  # fmt: skip


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
