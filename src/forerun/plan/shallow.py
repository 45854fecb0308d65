"""Time and memory of a step over any number of GPUs, from two shallow models traced once.

The seconds of a replayed step are linear in the number of blocks from the second block on (LLaMA-3-8B, five layouts,
three ways of recomputing, 2026-11-23: second differences of 7e-12 s sharded and 5e-10 s with copies), bytes nearly so.
A trace of one layout serves all with the same operators: its exchanges are priced again for the groups of the other
layout, and the bytes of weights, gradients and state are those of its shards. Time and memory are those at the longest
length of the batch plan. Models without a shallow form are traced as they are. What is chosen is forecast in full.

Not covered: operators on shards (the update), which are timed as of the layout that was traced.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from forerun.clock.costs import Costs, CostsAround
from forerun.clock.timeline import StepTime, replay_clock
from forerun.data.plan import BatchShape
from forerun.forecasting.request import ForecastRequest
from forerun.forecasting.step_model import choose_costs
from forerun.forecasting.traces import step_trace
from forerun.hardware.catalogue import Device
from forerun.memory.card import FRAGMENTATION_SHARE, CardReplay, replay_on_card
from forerun.plan.candidates import give_back_memory
from forerun.plan.layouts import ClusterLayout, ModelSize, least_bytes
from forerun.plan.regroup import regrouped
from forerun.settings.devices import ParallelSettings
from forerun.settings.schema import Settings
from forerun.step.head_workload import HeadWorkload
from forerun.trace import BETWEEN_RANKS, Call, Trace
from forerun.virtual.repeated_blocks import shallow_depths

DEPTHS = (0, 1)
"""Of the shallow models, shallowest first, the two that are traced."""


@dataclass(frozen=True)
class StepEstimate:
    """One optimizer step of one rank."""

    seconds: float
    communication_seconds: float
    """In which nothing else runs."""
    alone_seconds: float
    """The same step if every exchange took no time: no layout with these operators is faster."""
    device_bytes: float
    """Most that the device needs (conservative)."""
    bubble_seconds: float = 0.0
    """In which a stage of a pipeline waits for others; part of `alone_seconds`."""


@dataclass(frozen=True)
class OtherExchanges(CostsAround):
    """Costs with the exchanges between ranks priced by others, or free."""

    exchanges: Costs | None
    communication_share: float = 0.0

    def device_seconds(self, call: Call) -> float:
        """Seconds of one call."""
        if not call.name.startswith(BETWEEN_RANKS):
            return self.costs.device_seconds(call)
        return 0.0 if self.exchanges is None else self.exchanges.device_seconds(call)


class ShallowStep:
    """A step of `request`, whose settings have the layout `reference`, on any layout with the same operators.

    Raises:
        ForerunError: the step cannot be built or traced.
    """

    def __init__(self, request: ForecastRequest, device: Device, reference: ClusterLayout, size: ModelSize):
        self.request, self.device, self.reference, self.size = request, device, reference, size
        models, self.more = _models(request)
        batch = request.settings.batch
        shape = BatchShape(batch.micro_batch_size, request.plan.longest.length)
        self.traces: list[Trace] = []
        for model in models:
            self.traces.append(step_trace(replace(request, device=device), shape, settings=model))
            give_back_memory()
        self.costs = [choose_costs(device, [trace], request.calibration) for trace in self.traces]
        self._alone: dict[int, float] = {}

    def estimate(self, layout: ClusterLayout, accumulation: int) -> StepEstimate:
        """The step over the GPUs of `layout` with `accumulation` micro-batches."""
        times: list[StepTime] = []
        for trace, costs in zip(self.traces, self.costs, strict=True):
            moved = replace(regrouped(trace, self.reference, layout), accumulation=accumulation)
            exchanges = choose_costs(self.device, [moved], self.request.calibration)
            share = getattr(exchanges, "communication_share", 0.0)
            times.append(replay_clock(moved, OtherExchanges(costs, exchanges, share)))
        return StepEstimate(
            self._deep([time.seconds for time in times]),
            self._deep([time.phases.communication_seconds for time in times]),
            self.alone_seconds(accumulation),
            self.device_bytes(layout),
        )

    def alone_seconds(self, accumulation: int) -> float:
        """Seconds of the step if every exchange took no time."""
        if accumulation not in self._alone:
            self._alone[accumulation] = self._deep([
                replay_clock(replace(trace, accumulation=accumulation), OtherExchanges(costs, None)).seconds
                for trace, costs in zip(self.traces, self.costs, strict=True)
            ])  # fmt: skip
        return self._alone[accumulation]

    def device_bytes(self, layout: ClusterLayout) -> float:
        """Most that one device of `layout` needs, in bytes."""
        peaks = [card.memory.peak_allocated_bytes for card in self._cards]
        growth = max(0.0, peaks[-1] - peaks[0]) * self.more
        settings = self.request.settings
        here, there = (least_bytes(settings, where, self.size) for where in (self.reference, layout))
        return self._cards[-1].device_bytes.conservative + (growth + there - here) * FRAGMENTATION_SHARE

    @cached_property
    def _cards(self) -> list[CardReplay]:
        return [replay_on_card(trace, self.device) for trace in self.traces]

    def _deep(self, values: list[float]) -> float:
        """A value of the whole model: the last one, and as often as blocks are missing what it has over the first."""
        return values[-1] + self.more * (values[-1] - values[0])


def _models(request: ForecastRequest) -> tuple[list[Settings], float]:
    """Shallow models, and how many times their difference is to be added to the last; else the model itself."""
    alone = request.settings.model_copy(update={"parallel": ParallelSettings()})
    depths = shallow_depths(alone) if isinstance(request.workload, HeadWorkload) else None
    if depths is None:
        return [request.settings], 0.0
    shallow, more = depths
    models = [request.settings.model_copy(update={"model": shallow[n].model}) for n in DEPTHS]
    return models, (more - DEPTHS[1]) / (DEPTHS[1] - DEPTHS[0])
