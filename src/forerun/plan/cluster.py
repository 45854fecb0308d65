"""How many GPUs, in which layout? From settings, a GPU and numbers of it to a `ClusterPlan`.

Layouts that share operators are one part of the search, the full forecast of each number's best another; parts run side
by side. A number's row is the full forecast of its best layout that fits. Without limits the fastest run is chosen;
with a deadline alone the cheapest that keeps it; with a budget the fastest that keeps both.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forerun.clock.between_ranks import job_of
from forerun.errors import ForerunError
from forerun.forecasting.forecast import make_forecast
from forerun.hardware.catalogue import Device
from forerun.plan.candidates import Ask, give_back_memory
from forerun.plan.choose import PlanLimits
from forerun.plan.cluster_outcome import ClusterPlan, ClusterRow, LostLayout
from forerun.plan.cluster_search import (
    ClusterCandidate,
    ClusterQuestion,
    ShapeResult,
    lost_layout,
    possible_layouts,
    ranked,
    search_layouts,
    slower,
    worth_splitting,
)
from forerun.plan.fan_out import FanOut, InThisProcess
from forerun.plan.layouts import ClusterLayout, model_size, require_searchable
from forerun.plan.outcome import Reason, RunPlan
from forerun.plan.pipelines import search_pipeline, worth_piping
from forerun.plan.space import differences
from forerun.records import Forecast
from forerun.settings.schema import Settings
from forerun.units import format_bytes, format_percent, format_seconds

TRIES = 4
"""Candidates of one number of GPUs that are forecast in full at most, until one fits."""


@dataclass(frozen=True)
class ClusterFinalist:
    """The best layout of one number of GPUs, in full, and those before it that did not fit after all."""

    candidate: ClusterCandidate | None
    forecast: Forecast | None
    lost: tuple[LostLayout, ...] = ()

    @property
    def seconds(self) -> float:
        """Expected seconds of the run, with failures where the settings name some."""
        return _seconds(self.forecast) if self.forecast is not None else math.inf

    @property
    def cost(self) -> float | None:
        """Expected dollars of the run; None where no price is known."""
        if self.forecast is None:
            return None
        run = self.forecast.run
        return run.cost if run.reliability is None else run.reliability.cost


def _seconds(forecast: Forecast) -> float:
    run = forecast.run
    if run.reliability is None:
        return run.seconds.expected
    return math.inf if run.reliability.seconds is None else run.reliability.seconds


@dataclass(frozen=True)
class ClusterFindings:
    """What a search found out, before any limit chooses."""

    question: ClusterQuestion
    finalists: tuple[ClusterFinalist, ...]
    """One for each number of GPUs, in their order."""
    lost: tuple[LostLayout, ...]
    layouts: int
    """That were looked at."""
    traces: int
    workers: int
    seconds: float


def make_cluster_plan(
    original: Settings,
    device: Device,
    counts: Sequence[int],
    ask: Ask,
    *,
    limits: PlanLimits | None = None,
    fan: FanOut | None = None,
    on_progress: Callable[[str], None] = lambda what: None,
) -> ClusterPlan:
    """The number of GPUs and the layout to run `original` with; `ask` must pickle where `fan` has other processes.

    Raises:
        InvalidSettings: the settings spread a step in a way that is not searched.
        ForerunError: the model cannot be built.
    """
    findings = search_cluster(original, device, counts, ask, fan or InThisProcess(), on_progress)
    return plan_within(findings, limits or PlanLimits())


def search_cluster(
    original: Settings, device: Device, counts: Sequence[int], ask: Ask, fan: FanOut,
    on_progress: Callable[[str], None] = lambda what: None,
) -> ClusterFindings:  # fmt: skip
    """The best layout of each of `counts`; errors as of `make_cluster_plan`."""
    started = time.perf_counter()
    require_searchable(original)
    cluster = original.cluster  # an unknown network is an error here, and no reason why each layout lost
    job_of(device, max(counts), cluster.gpus_per_node, None if cluster.network == "auto" else cluster.network)
    on_progress("sizes of the model")
    question = ClusterQuestion(original, device, ask, tuple(counts), model_size(ask(original, device)))
    layouts, lost = possible_layouts(question)
    looked_at = len(layouts) + len(lost)
    whole = [layout for layout in layouts if layout.pipeline == 1]
    results = _search(question, [one for one in whole if not one.is_split], fan, on_progress)
    split, not_worth = worth_splitting(question, [one for one in whole if one.is_split], results)
    results += _search(question, split, fan, on_progress)
    pipelines, not_piped = worth_piping(question, [one for one in layouts if one.pipeline > 1], results)
    if pipelines:
        on_progress(f"{len(pipelines)} pipelines")
    results += fan.map(search_pipeline, [question] * len(pipelines), pipelines)
    lost += not_worth + not_piped + [one for result in results for one in result.lost]
    candidates = [candidate for result in results for candidate in result.candidates]
    on_progress("best layouts in full")
    by_count = [ranked(candidates, count)[:TRIES] for count in counts]
    finalists = tuple(fan.map(forecast_best, [question] * len(counts), by_count))
    lost += _slower(candidates, finalists)
    traces, seconds = sum(result.traces for result in results), time.perf_counter() - started
    return ClusterFindings(question, finalists, tuple(lost), looked_at, traces, fan.workers, seconds)


def plan_within(findings: ClusterFindings, limits: PlanLimits) -> ClusterPlan:
    """The plan that keeps `limits`, or comes nearest to them."""
    finalists = findings.finalists
    rows = _rows(findings, limits)
    choice = _choose(finalists, rows, limits)
    lost = sorted(findings.lost, key=lambda one: (one.gpus, one.step_seconds or math.inf))
    return ClusterPlan(
        plan=_run_plan(findings, choice, rows, limits),
        gpus=None if choice is None or choice.candidate is None else choice.candidate.layout.gpus,
        rows=rows,
        lost=lost,
        layouts=findings.layouts,
        pruned=dict(Counter(one.cause for one in lost if one.is_untraced)),
        workers=findings.workers,
    )


def _search(
    question: ClusterQuestion, layouts: Sequence[ClusterLayout], fan: FanOut, on_progress: Callable[[str], None]
) -> list[ShapeResult]:
    """The layouts by their operators, side by side; the largest parts first."""
    groups: dict[object, list[ClusterLayout]] = {}
    for layout in layouts:
        groups.setdefault(layout.shape, []).append(layout)
    parts = sorted(groups.values(), key=len, reverse=True)
    if parts:
        on_progress(f"{len(layouts)} layouts of {len(parts)} kinds")
    return list(fan.map(search_layouts, [question] * len(parts), parts))


def forecast_best(question: ClusterQuestion, candidates: Sequence[ClusterCandidate]) -> ClusterFinalist:
    """The first of `candidates` that fits when it is forecast in full."""
    lost = []
    for candidate in candidates:
        try:
            forecast = make_forecast(question.ask(candidate.settings, question.device))
        except ForerunError as error:
            lost.append(lost_layout(candidate.layout, "refused", str(error)))
            continue
        give_back_memory()
        if forecast.fits:
            return ClusterFinalist(candidate, forecast, tuple(lost))
        needs = format_bytes(forecast.memory.device_bytes.conservative)
        text = f"needs {needs} of {format_bytes(forecast.memory.capacity_bytes)} in full; {candidate.description}"
        lost.append(lost_layout(candidate.layout, "memory", text, candidate.estimate.seconds))
    return ClusterFinalist(None, None, tuple(lost))


def _slower(candidates: Sequence[ClusterCandidate], finalists: Sequence[ClusterFinalist]) -> list[LostLayout]:
    """Why the best of every other layout that fits was not chosen."""
    lost = []
    for finalist in finalists:
        best, before = finalist.candidate, {one.layout: one for one in finalist.lost}
        if best is None:
            lost += before.values()
            continue
        others = {}
        for candidate in ranked(candidates, best.layout.gpus):
            others.setdefault(candidate.layout, candidate)
        lost += [
            before.get(layout.description) or slower(other, best)
            for layout, other in others.items()
            if layout != best.layout
        ]
    return lost


def _rows(findings: ClusterFindings, limits: PlanLimits) -> list[ClusterRow]:
    original, pairs = findings.question.settings, zip(findings.question.counts, findings.finalists, strict=True)
    rows = [_row(original, count, one, findings.lost, limits) for count, one in pairs]
    fitting = [row for row in rows if row.fits]
    return [
        row.model_copy(update={"is_on_front": row.fits and not any(_beats(other, row) for other in fitting)})
        for row in rows
    ]


def _row(
    original: Settings, count: int, finalist: ClusterFinalist, lost: Sequence[LostLayout], limits: PlanLimits
) -> ClusterRow:
    machines = math.ceil(count / original.cluster.gpus_per_node)
    candidate, forecast = finalist.candidate, finalist.forecast
    if candidate is None or forecast is None:
        causes = Counter(one.cause for one in lost if one.gpus == count)
        text = ", ".join(f"{number} layouts: {cause}" for cause, number in causes.most_common())
        return ClusterRow(gpus=count, machines=machines, fits=False, why_not=text)
    step, batch = forecast.step, candidate.settings.batch
    return ClusterRow(
        gpus=count,
        machines=machines,
        fits=True,
        layout=candidate.layout.description,
        parallel=candidate.layout.parallel,
        micro_batch_size=batch.micro_batch_size,
        gradient_accumulation_steps=batch.gradient_accumulation_steps,
        activation_checkpointing=candidate.settings.activation_checkpointing,
        device_bytes=forecast.memory.device_bytes.conservative,
        step_seconds=step.seconds.expected,
        communication_fraction=step.phases.communication_seconds / step.seconds.expected,
        mfu=step.mfu,
        run_seconds=finalist.seconds if math.isfinite(finalist.seconds) else None,
        cost=finalist.cost,
        keeps_limits=_keeps(finalist, limits),
    )


def _keeps(finalist: ClusterFinalist, limits: PlanLimits) -> bool:
    """Whether a run keeps the limits and ends; an unknown cost keeps no budget."""
    late = finalist.seconds > (math.inf if limits.deadline_seconds is None else limits.deadline_seconds)
    dear = limits.budget is not None and (finalist.cost is None or finalist.cost > limits.budget)
    return math.isfinite(finalist.seconds) and not late and not dear


def _beats(one: ClusterRow, other: ClusterRow) -> bool:
    mine, its = _measures(one), _measures(other)
    return all(a <= b for a, b in zip(mine, its, strict=True)) and mine != its


def _measures(row: ClusterRow) -> tuple[float, float]:
    seconds = math.inf if row.run_seconds is None else row.run_seconds
    return seconds, math.inf if row.cost is None else row.cost


def _choose(
    finalists: Sequence[ClusterFinalist], rows: Sequence[ClusterRow], limits: PlanLimits
) -> ClusterFinalist | None:
    """The cheapest that keeps a deadline, else the fastest within the limits; the nearest where none keeps them."""
    fitting = [(row, one) for row, one in zip(rows, finalists, strict=True) if row.fits]
    within = [pair for pair in fitting if pair[0].keeps_limits]
    if not fitting:
        return None
    by_cost = limits.deadline_seconds is not None and limits.budget is None
    if within:
        return min(within, key=lambda pair: _measures(pair[0])[:: -1 if by_cost else 1])[1]
    fastest = limits.deadline_seconds is not None
    return min(fitting, key=lambda pair: _measures(pair[0])[:: 1 if fastest else -1])[1]


def _run_plan(
    findings: ClusterFindings, choice: ClusterFinalist | None, rows: Sequence[ClusterRow], limits: PlanLimits
) -> RunPlan:
    original, device = findings.question.settings, findings.question.device
    candidate, forecast = (None, None) if choice is None else (choice.candidate, choice.forecast)
    selection = None if candidate is None else candidate.settings
    return RunPlan(
        name=original.name,
        gpu=None if selection is None else device.name,
        fits=selection is not None,
        meets_limits=choice is not None and _keeps(choice, limits),
        deadline_seconds=limits.deadline_seconds,
        budget=limits.budget,
        settings=None if selection is None else selection.model_dump(mode="json"),
        changes=[] if selection is None else differences(original, selection),
        forecast=forecast,
        given=None,
        reasons=_reasons(choice, rows, limits),
        warnings=[] if forecast is None else forecast.warnings,
        search_seconds=findings.seconds,
        traces=findings.traces,
    )


def _reasons(choice: ClusterFinalist | None, rows: Sequence[ClusterRow], limits: PlanLimits) -> list[Reason]:
    """Why this number of GPUs, and how much of the speed of fewer ones it keeps."""
    if choice is None or choice.candidate is None:
        return []
    count, why = choice.candidate.layout.gpus, "the fastest"
    if limits.deadline_seconds is not None and limits.budget is None:
        why = f"the cheapest within {format_seconds(limits.deadline_seconds)}"
    elif limits.budget is not None:
        why = f"the fastest within ${limits.budget:,.0f}"
    if not _keeps(choice, limits):
        why = "the nearest to the limits, which no number of GPUs keeps"
    reasons = [Reason(about="parallel", said=f"{count} GPUs: {why} of {', '.join(str(row.gpus) for row in rows)}.")]
    first = next(row for row in rows if row.fits)
    here = next(row for row in rows if row.gpus == count)
    if first.gpus < count and first.step_seconds and here.step_seconds:
        share = first.step_seconds * first.gpus / (here.step_seconds * count)
        text = f"Scaling from {first.gpus} GPUs keeps {format_percent(share)} of the speed of each."
        reasons.append(Reason(about="parallel", said=text))
    return reasons
