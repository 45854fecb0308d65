"""One run on many GPUs: what each takes at its own best micro-batch, what that costs, and which to take.

The global batch stays. A GPU without the number format gets the one that it has; one without the memory gets the
mildest recomputation with which the run fits. Steps are traced once for all GPUs of one compute capability. What a run
takes beside its steps is that of one full forecast, scoring by the ratio of steps; the rows that are marked as fastest,
cheapest and chosen are forecast in full.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from forerun.errors import ForerunError
from forerun.forecasting.forecast import make_forecast
from forerun.forecasting.traces import config_digest, kept_answer
from forerun.hardware.catalogue import Device
from forerun.plan.candidates import Ask, Estimate, Workbench
from forerun.plan.choose import PlanLimits
from forerun.plan.front import PlanFinalist, cost_of
from forerun.plan.outcome import ComparisonRow, GpuComparison
from forerun.plan.search import best_of_class
from forerun.plan.space import can_run, changed, differences, precisions, recomputations
from forerun.records import Forecast
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings
from forerun.units import format_bytes


@dataclass
class _Candidate:
    """One GPU's best candidate, or why it has none."""

    device: Device
    best: Estimate | None
    why_not: str = ""
    forecast: Forecast | None = None


def compare_gpus(
    original: Settings,
    devices: Sequence[Device],
    ask: Ask,
    *,
    limits: PlanLimits | None = None,
    keeps: bool = False,
    on_progress: Callable[[str], None] = lambda what: None,
) -> GpuComparison:
    """`original` on each of `devices`; with a deadline the cheapest that keeps it is chosen, else the fastest.

    With `keeps` the best on each is kept for other processes: where settings and catalogue say all that `ask` does.
    """
    started, limits = time.perf_counter(), limits or PlanLimits()
    bench = Workbench(ask, float("inf"))

    def make() -> dict[str, Any]:
        candidates = []
        for device in devices:
            on_progress(device.name)
            candidates.append(_document(_on(original, device, bench)))
        return {"candidates": candidates, "traces": len(bench.traces)}

    answer = kept_answer(_key(original, devices), make) if keeps else make()
    candidates = [_candidate(document, device) for document, device in zip(answer["candidates"], devices, strict=True)]
    reference = _reference(candidates, bench, on_progress)
    rows = _rows(original, candidates, reference, limits)
    for _ in devices:  # a full forecast can change which row is first, but each row is forecast once at most
        unproven = [c for c in candidates if c.forecast is None and c.device.name in _marked(rows, limits)]
        if not unproven:
            break
        _forecast(unproven[0], bench, on_progress)
        rows = _rows(original, candidates, reference, limits)
    fastest, cheapest, choice = _marked(rows, limits)
    return GpuComparison(
        name=original.name, deadline_seconds=limits.deadline_seconds, budget=limits.budget, rows=rows, fastest=fastest,
        cheapest=cheapest, chosen=choice, search_seconds=time.perf_counter() - started, traces=answer["traces"],
    )  # fmt: skip


def _key(original: Settings, devices: Sequence[Device]) -> dict[str, Any]:
    """All that the best candidates follow from; prices decide later."""
    prices = {"price_per_hour", "price_date", "price_source", "sources"}
    return {
        "settings": original.model_dump(mode="json"), "config": config_digest(original.model.name),
        "devices": [device.model_dump(mode="json", exclude=prices) for device in devices],
    }  # fmt: skip


def _document(candidate: _Candidate) -> dict[str, Any]:
    best = candidate.best
    content = None if best is None else {f.name: getattr(best, f.name) for f in fields(best) if f.name != "device"}
    if content is not None:
        content["settings"] = content["settings"].model_dump(mode="json")
    return {"best": content, "why_not": candidate.why_not}


def _candidate(document: dict[str, Any], device: Device) -> _Candidate:
    content = document["best"]
    if content is None:
        return _Candidate(device, None, document["why_not"])
    return _Candidate(device, Estimate(**content | {"settings": settings_from(content["settings"]), "device": device}))


def _on(original: Settings, device: Device, bench: Workbench) -> _Candidate:
    """The best of the original step class on `device`, or of the mildest recomputation that fits."""
    start = original if can_run(original, device) else changed(original, {"precision": precisions(original, device)[0]})
    needs = []
    for saving in (None, *recomputations(start)):
        try:
            result = best_of_class(start if saving is None else changed(start, saving), device, bench)
        except ForerunError as error:
            return _Candidate(device, None, str(error))
        if result.best is not None:
            return _Candidate(device, result.best)
        needs.append(result.needed_bytes)
        if result.state_bytes > device.memory_bytes:
            break  # recomputing saves none of it
    return _Candidate(device, None, f"needs {format_bytes(min(needs))} of {format_bytes(device.memory_bytes)}")


def _reference(
    candidates: Sequence[_Candidate], bench: Workbench, on_progress: Callable[[str], None]
) -> _Candidate | None:
    """The first GPU whose full forecast fits too."""
    for candidate in candidates:
        if candidate.best is not None:
            _forecast(candidate, bench, on_progress)
            if candidate.best is not None:
                return candidate
    return None


def _forecast(candidate: _Candidate, bench: Workbench, on_progress: Callable[[str], None]) -> None:
    """Forecast the candidate in full; scoring or generating can need more memory than training."""
    assert candidate.best is not None, "only what fits is forecast"
    on_progress(f"{candidate.device.name}, in full")
    forecast = make_forecast(bench.ask(candidate.best.settings, candidate.device))
    if forecast.fits:
        candidate.forecast = forecast
    else:
        needs, has = forecast.memory.device_bytes.conservative, forecast.memory.capacity_bytes
        candidate.best = None
        candidate.why_not = f"needs {format_bytes(needs)} of {format_bytes(has)}, scoring included"


def _rows(
    original: Settings, candidates: Sequence[_Candidate], reference: _Candidate | None, limits: PlanLimits
) -> list[ComparisonRow]:
    rows = [_row(original, candidate, reference, limits) for candidate in candidates]
    fitting = [row for row in rows if row.fits]
    for number, row in enumerate(rows):
        if row.fits and not any(_beats(other, row) for other in fitting):
            rows[number] = row.model_copy(update={"is_on_front": True})
    return rows


def _row(original: Settings, candidate: _Candidate, reference: _Candidate | None, limits: PlanLimits) -> ComparisonRow:
    device, best = candidate.device, candidate.best
    content: dict[str, Any] = {
        "gpu": device.name, "capacity_bytes": device.memory_bytes, "price_per_hour": device.price_per_hour,
    }  # fmt: skip
    if best is None or reference is None:
        return ComparisonRow(**content, fits=False, why_not=candidate.why_not)
    if candidate.forecast is not None:
        whole = PlanFinalist(best, candidate.forecast)
        seconds, step = whole.seconds, candidate.forecast.step.seconds.expected
        memory = candidate.forecast.memory.device_bytes.conservative
    else:
        seconds, step, memory = _run_seconds(best, reference), best.step_seconds, best.device_bytes
    cost = cost_of(best, seconds)
    late = limits.deadline_seconds is not None and seconds > limits.deadline_seconds
    dear = limits.budget is not None and (cost is None or cost > limits.budget)
    return ComparisonRow(
        **content, fits=True, changes=differences(original, best.settings), micro_batch_size=best.size,
        device_bytes=memory, step_seconds=step, run_seconds=seconds, cost=cost, keeps_limits=not late and not dear,
        is_full_forecast=candidate.forecast is not None,
    )  # fmt: skip


def _run_seconds(best: Estimate, reference: _Candidate) -> float:
    """Steps of this GPU, the rest of the reference's run, its scoring by the ratio of the steps."""
    assert reference.best is not None, "a reference fits"
    assert reference.forecast is not None, "and is forecast"
    phases = reference.forecast.run.phases
    ratio = phases.training_seconds / reference.best.training_seconds
    slower = best.training_seconds / reference.best.training_seconds
    same = phases.startup_seconds + phases.checkpoint_seconds
    return best.training_seconds * ratio + phases.evaluation_seconds * slower + same + best.compiling_seconds


def _beats(one: ComparisonRow, other: ComparisonRow) -> bool:
    """Faster and cheaper; one without a price beats none that has one, nor is beaten but by the faster."""
    mine, its = _measures(one), _measures(other)
    return all(a <= b for a, b in zip(mine, its, strict=True)) and mine != its


def _measures(row: ComparisonRow) -> tuple[float, float]:
    return row.run_seconds or 0.0, float("inf") if row.cost is None else row.cost


def _marked(rows: Sequence[ComparisonRow], limits: PlanLimits) -> tuple[str | None, str | None, str | None]:
    """Names of the fastest, the cheapest and the chosen."""
    fitting = [row for row in rows if row.fits]
    within_limits = [row for row in fitting if row.keeps_limits]
    by_cost = limits.deadline_seconds is not None and limits.budget is None
    return (
        _quickest(fitting),
        _cheapest(fitting),
        (_cheapest(within_limits) if by_cost else None) or _quickest(within_limits),
    )


def _quickest(rows: Sequence[ComparisonRow]) -> str | None:
    return min(rows, key=_measures).gpu if rows else None


def _cheapest(rows: Sequence[ComparisonRow]) -> str | None:
    priced = [row for row in rows if row.cost is not None]
    return min(priced, key=lambda row: _measures(row)[::-1]).gpu if priced else None
