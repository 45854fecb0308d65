"""From settings and GPUs to a `Plan`: search each device, forecast the finalists in full, choose within the limits.

Without limits the fastest run is chosen; with a deadline alone the cheapest that keeps it; with a budget the
fastest that keeps both. The method is changed only where the user allows it and nothing else fits or keeps the limits.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from forerun.errors import ForerunError
from forerun.forecasting.forecast import make_forecast
from forerun.hardware.catalogue import Device
from forerun.plan import reasons
from forerun.plan.candidates import Ask, Estimate, Workbench
from forerun.plan.front import PlanFinalist, make_front
from forerun.plan.outcome import Reason, RunPlan
from forerun.plan.remedies import remedies
from forerun.plan.scaling import rule_said
from forerun.plan.search import NEGLIGIBLE, Found, run_seconds, search
from forerun.plan.space import can_run, changed, differences, method_ladder
from forerun.records import Forecast
from forerun.settings.schema import Settings
from forerun.units import format_bytes, format_percent, format_seconds

SEARCH_SECONDS = 24.0
"""Processor time for the search on one device, before its finalists are forecast."""
CLOSE = 0.03
"""A second finalist is forecast when its estimate lies this near to the first."""
CONTENDERS = 3
"""Candidates that `--confirm` runs."""
TRIES = 8
"""Finalists of one device at most; one fails when scoring or generating needs more than training."""


@dataclass(frozen=True)
class PlanLimits:
    """What a run may take."""

    deadline_seconds: float | None = None
    budget: float | None = None

    def kept_by(self, finalist: PlanFinalist) -> bool:
        """Whether its expected time and cost are within; a cost that is not known keeps no budget."""
        late = self.deadline_seconds is not None and finalist.seconds > self.deadline_seconds
        dear = self.budget is not None and (finalist.cost is None or finalist.cost > self.budget)
        return not late and not dear


@dataclass
class Attempt:
    """The search of all devices with one method."""

    method: str
    given: Settings
    founds: list[Found]
    finalists: list[PlanFinalist]
    chosen: PlanFinalist | None
    keeps: bool


def make_plan(
    given: Settings,
    devices: Sequence[Device],
    ask: Ask,
    *,
    limits: PlanLimits | None = None,
    allow: Sequence[str] = (),
    seconds: float = SEARCH_SECONDS,
    on_progress: Callable[[str], None] = lambda what: None,
) -> RunPlan:
    """The plan of `given` on the best of `devices`; `allow` holds words of `space.ALLOWABLE`."""
    started, limits = time.perf_counter(), limits or PlanLimits()
    bench = Workbench(ask, 0.0)
    attempts: list[Attempt] = []
    for method, variants in _methods(given, devices, allow):
        bench.seconds = time.process_time() - bench.started + seconds * len(variants)
        on_progress(method or "settings")
        attempts.append(_attempt(method, variants, bench, limits, "global-batch" in allow, on_progress))
        if attempts[-1].keeps:
            break
    best = _best_attempt(attempts, limits)
    return _plan(given, devices, best, attempts, bench, limits, allow, started)


def _methods(
    given: Settings, devices: Sequence[Device], allow: Sequence[str]
) -> list[tuple[str, list[tuple[Device, Settings]]]]:
    found = [("", [(device, given) for device in devices])]
    if "method" in allow:
        ladders = [dict(method_ladder(given, device)) for device in devices]
        for name in dict.fromkeys(name for ladder in ladders for name in ladder):
            pairs = zip(devices, ladders, strict=True)
            found.append((name, [(d, changed(given, ladder[name])) for d, ladder in pairs if name in ladder]))
    return found


def _attempt(
    method: str, variants: list[tuple[Device, Settings]], bench: Workbench, limits: PlanLimits, change_global: bool,
    on_progress: Callable[[str], None],
) -> Attempt:  # fmt: skip
    founds, finalists = [], []
    for device, settings in variants:
        on_progress(f"{device.name} {method}".strip())
        found = search(settings, device, bench, change_global=change_global)
        founds.append(found)
        finalists += _finalists(settings, found, bench)
    kept = [finalist for finalist in finalists if limits.kept_by(finalist)]
    chosen = _choose(variants[0][1], kept or finalists, limits)
    return Attempt(method, variants[0][1], founds, finalists, chosen, bool(kept))


def _finalists(given: Settings, found: Found, bench: Workbench) -> list[PlanFinalist]:
    """Up to two candidates of one device that fit by their full forecast, the likeliest best first."""
    ranked = found.ranked()
    if not ranked:
        return []
    quickest = run_seconds(ranked[0])
    alike = [e for e in ranked if run_seconds(e) <= quickest * (1 + NEGLIGIBLE)]
    alike.sort(key=lambda e: (len(differences(given, e.settings)), e.device_bytes))
    finalists: list[PlanFinalist] = []
    for estimate in [*alike, *(e for e in ranked if e not in alike)][:TRIES]:
        if finalists and (bench.is_out_of_time or run_seconds(estimate) > quickest * (1 + CLOSE) or len(finalists) > 1):
            break
        forecast = make_forecast(bench.ask(estimate.settings, found.device))
        if forecast.fits:
            finalists.append(PlanFinalist(estimate, forecast))
        else:
            found.rejected.append(_not_after_all(estimate, forecast))
    return finalists


def _not_after_all(estimate: Estimate, forecast: Forecast) -> Reason:
    needs, has = forecast.memory.device_bytes.conservative, forecast.memory.capacity_bytes
    peaks = forecast.memory.phase_peaks
    where = max(peaks, key=lambda name: peaks[name], default="training")
    said = f"micro_batch_size {estimate.size}: needs {format_bytes(needs)} in {where}, of {format_bytes(has)}"
    return Reason(about="batch.micro_batch_size", said=said)


def _choose(given: Settings, finalists: Sequence[PlanFinalist], limits: PlanLimits) -> PlanFinalist | None:
    """The fastest, or with a deadline alone the cheapest; among equals the one that changes least."""
    if not finalists:
        return None

    def measure(finalist: PlanFinalist) -> float:
        if limits.deadline_seconds is not None and limits.budget is None:
            return float("inf") if finalist.cost is None else finalist.cost
        return finalist.seconds

    least = min(measure(f) for f in finalists)
    alike = [f for f in finalists if measure(f) <= least * (1 + NEGLIGIBLE / 2)]
    return min(alike, key=lambda f: (len(differences(given, f.estimate.settings)), f.seconds))


def _best_attempt(attempts: list[Attempt], limits: PlanLimits) -> Attempt:
    """The first that keeps the limits; else the first in which something fits."""
    keeping = [attempt for attempt in attempts if attempt.keeps]
    fitting = [attempt for attempt in attempts if attempt.chosen is not None]
    return (keeping or fitting or attempts)[0]


def _plan(
    given: Settings, devices: Sequence[Device], best: Attempt, attempts: list[Attempt], bench: Workbench,
    limits: PlanLimits, allow: Sequence[str], started: float,
) -> RunPlan:  # fmt: skip
    chosen = best.chosen
    founds = best.founds if chosen is not None else [found for attempt in attempts for found in attempt.founds]
    device = devices[0] if chosen is None else chosen.estimate.device
    candidates = [estimate for found in founds for estimate in found.estimates]
    why, rejected = _explained(given, best, attempts)
    kept = best.keeps
    return RunPlan(
        name=given.name,
        gpu=None if chosen is None else device.name,
        fits=chosen is not None,
        meets_limits=kept,
        deadline_seconds=limits.deadline_seconds,
        budget=limits.budget,
        settings=None if chosen is None else chosen.estimate.settings.model_dump(mode="json"),
        changes=[] if chosen is None else differences(given, chosen.estimate.settings),
        forecast=None if chosen is None else chosen.forecast,
        given=_forecast_given(given, device, bench),
        front=[] if chosen is None else make_front(given, candidates, best.finalists, chosen),
        reasons=why,
        rejected=rejected,
        remedies=[] if kept else remedies(given, devices, best.finalists, founds, limits.deadline_seconds,
                                          limits.budget, bench, "method" in allow),
        contenders=[] if chosen is None else _contenders(chosen, founds),
        warnings=_warnings(chosen, limits, bench),
        search_seconds=time.perf_counter() - started,
        traces=len(bench.traces),
    )  # fmt: skip


def _contenders(chosen: PlanFinalist, founds: Sequence[Found]) -> list[dict[str, Any]]:
    """The chosen candidate and the next fastest of its device."""
    found = next(f for f in founds if f.device is chosen.estimate.device)
    best = {e.settings.hash: e.settings for e in [chosen.estimate, *found.ranked()]}
    return [settings.model_dump(mode="json") for settings in list(best.values())[:CONTENDERS]]


def _forecast_given(given: Settings, device: Device, bench: Workbench) -> Forecast | None:
    if not can_run(given, device) or (given.compile != "none" and bench.is_out_of_time):
        return None
    try:
        return make_forecast(bench.ask(given, device))
    except ForerunError:
        return None  # said by the search, which meets the same error


def _explained(given: Settings, best: Attempt, attempts: list[Attempt]) -> tuple[list[Reason], list[Reason]]:
    """Reasons for what was chosen, and for what was not."""
    chosen = best.chosen
    if chosen is None:
        founds = [found for attempt in attempts for found in attempt.founds]
        tight = [reasons.needs_more(found) for found in founds]
        return [], [*(r for rows in tight for r in rows), *(r for found in founds for r in found.rejected)]
    found = next(f for f in best.founds if f.device is chosen.estimate.device)
    why = reasons.for_changes(given, chosen.estimate, found, _eager(found))
    why += [
        reason
        for reason in found.reasons
        if reason.about in {c.path for c in differences(given, chosen.estimate.settings)}
    ]
    if given.global_batch_size != chosen.estimate.settings.global_batch_size:
        why.append(Reason(about="optimizer.learning_rate", said=rule_said(given, chosen.estimate.settings)))
    if best.method:
        why.insert(0, Reason(about="method", said=f"{best.method}: {_why_method(attempts)}"))
    why += [reasons.against_gpu(chosen, other) for other in best.finalists
            if other.estimate.device is not chosen.estimate.device]  # fmt: skip
    return why, [*reasons.rejected(chosen.estimate, found, _eager(found)), *found.rejected]


def _eager(found: Found) -> Estimate | None:
    """The best that is not compiled."""
    return next((e for e in found.ranked() if e.settings.compile == "none"), None)


def _why_method(attempts: list[Attempt]) -> str:
    first = attempts[0]
    if first.chosen is not None:
        return f"without it the run takes {format_seconds(first.chosen.seconds)} at best"
    has = format_bytes(max(found.device.memory_bytes for found in first.founds))
    least = [e.device_bytes for found in first.founds for e in found.tried()]
    lowest = f", {format_bytes(min(least))} at least of {has}" if least else ""
    return f"without it nothing fits{lowest}"


def _warnings(chosen: PlanFinalist | None, limits: PlanLimits, bench: Workbench) -> list[str]:
    found = []
    if bench.ended_early:
        found.append(f"The search ended after {bench.seconds:.0f} s of processor time; not every class was tried.")
    if chosen is None:
        return found
    end = chosen.forecast.run.seconds.conservative
    if limits.deadline_seconds is not None and chosen.seconds <= limits.deadline_seconds < end:
        late = format_percent(end / limits.deadline_seconds - 1)
        found.append(f"The conservative forecast, {format_seconds(end)}, is {late} past the deadline.")
    if chosen.estimate.is_cramped:
        found.append(
            "It fits because the allocator gives cached memory back, which takes time that is not in the forecast; "
            "the next smaller micro-batch of the front has more room."
        )
    return found
