"""The time–memory–cost front: candidates that no other beats in all three at once."""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.plan.candidates import Estimate
from forerun.plan.outcome import FrontPoint
from forerun.plan.space import differences
from forerun.records import Forecast
from forerun.settings.schema import Settings
from forerun.units import HOUR

MOST_POINTS = 12


@dataclass(frozen=True)
class PlanFinalist:
    """A candidate with its full forecast."""

    estimate: Estimate
    forecast: Forecast

    @property
    def seconds(self) -> float:
        """Expected seconds of the run, compiling included."""
        return self.forecast.run.seconds.expected

    @property
    def cost(self) -> float | None:
        """Expected dollars of the run; None where no price is known."""
        return cost_of(self.estimate, self.seconds)


def cost_of(estimate: Estimate, seconds: float) -> float | None:
    """Dollars of `seconds` on the candidate's devices; None where no price is known."""
    price = estimate.device.price_per_hour
    return None if price is None else price * seconds / HOUR * estimate.settings.parallel.world_size


def make_front(
    original: Settings, candidates: Sequence[Estimate], finalists: Sequence[PlanFinalist], choice: PlanFinalist
) -> list[FrontPoint]:
    """Non-dominated candidates, fastest first; a device's finalist tells what a run takes beside its steps."""
    beside = {}
    for finalist in finalists:
        ratio = finalist.forecast.run.phases.training_seconds / finalist.estimate.training_seconds
        phases = finalist.forecast.run.phases
        rest = finalist.forecast.run.seconds.expected - phases.training_seconds - phases.compile_seconds
        beside.setdefault(finalist.estimate.device.name, (ratio, rest))
    points = []
    for estimate in [choice.estimate, *candidates]:
        if not estimate.fits or estimate.device.name not in beside:
            continue
        ratio, rest = beside[estimate.device.name]
        is_chosen = estimate is choice.estimate
        seconds = choice.seconds if is_chosen else estimate.training_seconds * ratio + rest + estimate.compiling_seconds
        memory = choice.forecast.memory.device_bytes.conservative if is_chosen else estimate.device_bytes
        step = choice.forecast.step.seconds.expected if is_chosen else estimate.step_seconds * ratio
        point = FrontPoint(
            gpu=estimate.device.name,
            changes=differences(original, estimate.settings),
            micro_batch_size=estimate.size,
            step_seconds=step,
            run_seconds=seconds,
            device_bytes=memory,
            cost=cost_of(estimate, seconds),
            is_chosen=is_chosen,
        )
        if not any(p.gpu == point.gpu and p.changes == point.changes for p in points):
            points.append(point)
    best = [p for p in points if p.is_chosen or not any(_beats(other, p) for other in points)]
    return sorted(best, key=lambda p: (p.run_seconds, p.device_bytes))[:MOST_POINTS]


def _beats(one: FrontPoint, other: FrontPoint) -> bool:
    mine, its = _measures(one), _measures(other)
    return all(a <= b for a, b in zip(mine, its, strict=True)) and mine != its


def _measures(point: FrontPoint) -> tuple[float, float, float]:
    return point.run_seconds, point.device_bytes, float("inf") if point.cost is None else point.cost
