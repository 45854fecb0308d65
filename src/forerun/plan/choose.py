"""Which GPU and which settings should a run take? From settings and devices to a `RunPlan`.

Each device is searched, the finalists are forecast in full, and the choice keeps the limits. Without limits the fastest
run is taken; with a deadline alone the cheapest that keeps it; with a budget the fastest that keeps both. The method is
changed only where the user allows it and nothing else fits or keeps the limits.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from forerun.errors import ForerunError
from forerun.forecasting.forecast import make_forecast
from forerun.hardware.catalogue import Device
from forerun.plan import reasons
from forerun.plan.candidates import Ask, CandidatePool, Estimate, Workbench, run_seconds
from forerun.plan.front import PlanFinalist, make_front
from forerun.plan.outcome import Reason, RunPlan
from forerun.plan.remedies import remedies
from forerun.plan.scaling import describe_rule
from forerun.plan.search import NEGLIGIBLE, search
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
    """Seconds and dollars that a run may take; None sets no limit."""

    deadline_seconds: float | None = None
    budget: float | None = None

    def are_kept_by(self, finalist: PlanFinalist) -> bool:
        """Whether the finalist's expected time and cost are within; an unknown cost keeps no budget."""
        late = self.deadline_seconds is not None and finalist.seconds > self.deadline_seconds
        dear = self.budget is not None and (finalist.cost is None or finalist.cost > self.budget)
        return not late and not dear


@dataclass
class Attempt:
    """The search of all devices with one method (`space.method_ladder`); "" is the method as set."""

    method: str
    original: Settings
    pools: list[CandidatePool]
    finalists: list[PlanFinalist]
    choice: PlanFinalist | None
    keeps_limits: bool


def make_plan(
    original: Settings,
    devices: Sequence[Device],
    ask: Ask,
    *,
    limits: PlanLimits | None = None,
    allow: Sequence[str] = (),
    seconds: float = SEARCH_SECONDS,
    on_progress: Callable[[str], None] = lambda what: None,
) -> RunPlan:
    """The plan of `original` on the best of `devices`; `allow` holds words of `space.ALLOWABLE`."""
    started, limits = time.perf_counter(), limits or PlanLimits()
    bench = Workbench(ask, 0.0)
    attempts: list[Attempt] = []
    for method, variants in _methods(original, devices, allow):
        bench.seconds = time.process_time() - bench.started + seconds * len(variants)
        on_progress(method or "settings")
        attempts.append(_attempt(method, variants, bench, limits, "global-batch" in allow, on_progress))
        if attempts[-1].keeps_limits:
            break
    best = _best_attempt(attempts, limits)
    return _plan(original, devices, best, attempts, bench, limits, allow, started)


def _methods(
    original: Settings, devices: Sequence[Device], allow: Sequence[str]
) -> list[tuple[str, list[tuple[Device, Settings]]]]:
    methods = [("", [(device, original) for device in devices])]
    if "method" in allow:
        ladders = [dict(method_ladder(original, device)) for device in devices]
        for name in dict.fromkeys(name for ladder in ladders for name in ladder):
            pairs = zip(devices, ladders, strict=True)
            methods.append((name, [(d, changed(original, ladder[name])) for d, ladder in pairs if name in ladder]))
    return methods


def _attempt(
    method: str, variants: list[tuple[Device, Settings]], bench: Workbench, limits: PlanLimits, change_global: bool,
    on_progress: Callable[[str], None],
) -> Attempt:  # fmt: skip
    pools, finalists = [], []
    for device, settings in variants:
        on_progress(f"{device.name} {method}".strip())
        pool = search(settings, device, bench, change_global=change_global)
        pools.append(pool)
        finalists += _finalists(settings, pool, bench)
    within_limits = [finalist for finalist in finalists if limits.are_kept_by(finalist)]
    choice = _choose(variants[0][1], within_limits or finalists, limits)
    return Attempt(method, variants[0][1], pools, finalists, choice, bool(within_limits))


def _finalists(original: Settings, pool: CandidatePool, bench: Workbench) -> list[PlanFinalist]:
    """Up to two candidates of one device that fit by their full forecast, the likeliest best first."""
    ranked = pool.ranked()
    if not ranked:
        return []
    quickest = run_seconds(ranked[0])
    alike = [e for e in ranked if run_seconds(e) <= quickest * (1 + NEGLIGIBLE)]
    alike.sort(key=lambda e: (len(differences(original, e.settings)), e.device_bytes))
    finalists: list[PlanFinalist] = []
    for estimate in [*alike, *(e for e in ranked if e not in alike)][:TRIES]:
        if finalists and (bench.is_out_of_time or run_seconds(estimate) > quickest * (1 + CLOSE) or len(finalists) > 1):
            break
        forecast = make_forecast(bench.ask(estimate.settings, pool.device))
        if forecast.fits:
            finalists.append(PlanFinalist(estimate, forecast))
        else:
            pool.rejected.append(_why_not_after_all(estimate, forecast))
    return finalists


def _why_not_after_all(estimate: Estimate, forecast: Forecast) -> Reason:
    needs, has = forecast.memory.device_bytes.conservative, forecast.memory.capacity_bytes
    peaks = forecast.memory.phase_peaks
    where = max(peaks, key=lambda name: peaks[name], default="training")
    text = f"micro_batch_size {estimate.size}: needs {format_bytes(needs)} in {where}, of {format_bytes(has)}"
    return Reason(about="batch.micro_batch_size", said=text)


def _choose(original: Settings, finalists: Sequence[PlanFinalist], limits: PlanLimits) -> PlanFinalist | None:
    """The fastest, or with a deadline alone the cheapest; among equals the one that changes least."""
    if not finalists:
        return None

    def measure(finalist: PlanFinalist) -> float:
        if limits.deadline_seconds is not None and limits.budget is None:
            return float("inf") if finalist.cost is None else finalist.cost
        return finalist.seconds

    least = min(measure(f) for f in finalists)
    alike = [f for f in finalists if measure(f) <= least * (1 + NEGLIGIBLE / 2)]
    return min(alike, key=lambda f: (len(differences(original, f.estimate.settings)), f.seconds))


def _best_attempt(attempts: list[Attempt], limits: PlanLimits) -> Attempt:
    """The first that keeps the limits; else the first in which something fits."""
    keeping = [attempt for attempt in attempts if attempt.keeps_limits]
    fitting = [attempt for attempt in attempts if attempt.choice is not None]
    return (keeping or fitting or attempts)[0]


def _plan(
    original: Settings, devices: Sequence[Device], best: Attempt, attempts: list[Attempt], bench: Workbench,
    limits: PlanLimits, allow: Sequence[str], started: float,
) -> RunPlan:  # fmt: skip
    choice = best.choice
    pools = best.pools if choice is not None else [pool for attempt in attempts for pool in attempt.pools]
    device = devices[0] if choice is None else choice.estimate.device
    candidates = [estimate for pool in pools for estimate in pool.estimates]
    why, rejected = _explain(original, best, attempts)
    return RunPlan(
        name=original.name,
        gpu=None if choice is None else device.name,
        fits=choice is not None,
        meets_limits=best.keeps_limits,
        deadline_seconds=limits.deadline_seconds,
        budget=limits.budget,
        settings=None if choice is None else choice.estimate.settings.model_dump(mode="json"),
        changes=[] if choice is None else differences(original, choice.estimate.settings),
        forecast=None if choice is None else choice.forecast,
        given=_forecast_given(original, device, bench),
        front=[] if choice is None else make_front(original, candidates, best.finalists, choice),
        reasons=why,
        rejected=rejected,
        remedies=[] if best.keeps_limits else remedies(
            original, devices, best.finalists, pools, limits.deadline_seconds, limits.budget, bench, "method" in allow),
        contenders=[] if choice is None else _contenders(choice, pools),
        warnings=_warnings(choice, limits, bench),
        search_seconds=time.perf_counter() - started,
        traces=len(bench.traces),
    )  # fmt: skip


def _contenders(choice: PlanFinalist, pools: Sequence[CandidatePool]) -> list[dict[str, Any]]:
    """The chosen candidate and the next fastest of its device."""
    pool = next(f for f in pools if f.device is choice.estimate.device)
    best = {e.settings.hash: e.settings for e in [choice.estimate, *pool.ranked()]}
    return [settings.model_dump(mode="json") for settings in list(best.values())[:CONTENDERS]]


def _forecast_given(original: Settings, device: Device, bench: Workbench) -> Forecast | None:
    if not can_run(original, device) or (original.compile != "none" and bench.is_out_of_time):
        return None
    try:
        return make_forecast(bench.ask(original, device))
    except ForerunError:
        return None  # said by the search, which meets the same error


def _explain(original: Settings, best: Attempt, attempts: list[Attempt]) -> tuple[list[Reason], list[Reason]]:
    """Reasons for the choice, and reasons against its neighbours."""
    choice = best.choice
    if choice is None:
        pools = [pool for attempt in attempts for pool in attempt.pools]
        tight = [reasons.needs_more(pool) for pool in pools]
        return [], [*(r for rows in tight for r in rows), *(r for pool in pools for r in pool.rejected)]
    pool = next(f for f in best.pools if f.device is choice.estimate.device)
    why = reasons.for_changes(original, choice.estimate, pool, _eager(pool))
    why += [
        reason
        for reason in pool.reasons
        if reason.about in {c.path for c in differences(original, choice.estimate.settings)}
    ]
    if original.global_batch_size != choice.estimate.settings.global_batch_size:
        why.append(Reason(about="optimizer.learning_rate", said=describe_rule(original, choice.estimate.settings)))
    if best.method:
        why.insert(0, Reason(about="method", said=f"{best.method}: {_why_method(attempts)}"))
    why += [reasons.against_gpu(choice, other) for other in best.finalists
            if other.estimate.device is not choice.estimate.device]  # fmt: skip
    return why, [*reasons.rejected(choice.estimate, pool, _eager(pool)), *pool.rejected]


def _eager(pool: CandidatePool) -> Estimate | None:
    """The best that is not compiled."""
    return next((e for e in pool.ranked() if e.settings.compile == "none"), None)


def _why_method(attempts: list[Attempt]) -> str:
    first = attempts[0]
    if first.choice is not None:
        return f"without it the run takes {format_seconds(first.choice.seconds)} at best"
    has = format_bytes(max(pool.device.memory_bytes for pool in first.pools))
    least = [e.device_bytes for pool in first.pools for e in pool.tried()]
    lowest = f", {format_bytes(min(least))} at least of {has}" if least else ""
    return f"without it nothing fits{lowest}"


def _warnings(choice: PlanFinalist | None, limits: PlanLimits, bench: Workbench) -> list[str]:
    warnings = []
    if bench.ended_early:
        warnings.append(f"The search ended after {bench.seconds:.0f} s of processor time; not every class was tried.")
    if choice is None:
        return warnings
    end = choice.forecast.run.seconds.conservative
    if limits.deadline_seconds is not None and choice.seconds <= limits.deadline_seconds < end:
        late = format_percent(end / limits.deadline_seconds - 1)
        warnings.append(f"The conservative forecast, {format_seconds(end)}, is {late} past the deadline.")
    if choice.estimate.is_cramped:
        warnings.append(
            "It fits because the allocator gives cached memory back, which takes time that is not in the forecast; "
            "the next smaller micro-batch of the front has more room."
        )
    return warnings
