"""How much time and memory a candidate takes, from few traces: a step is traced once for all micro-batch sizes.

A `StepClass` is everything about a step but its micro-batch size. Three traces give all sizes with accumulation
(`forecasting/sizes.py`), one more the step that holds the whole batch. Time is taken at the mean padded length of the
batch plan, memory at its longest. Candidates for the CPU are forecast one by one: its operators are timed.
"""

import gc
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from forerun.clock.timeline import StepTime, replay_clock
from forerun.data.plan import BatchPlan, BatchShape
from forerun.forecasting.compiling import compiling_seconds
from forerun.forecasting.forecast import make_forecast
from forerun.forecasting.lengths import at_length
from forerun.forecasting.request import ForecastRequest
from forerun.forecasting.sizes import SMALLEST, TracedSizes
from forerun.forecasting.step_model import choose_costs
from forerun.forecasting.traces import step_trace
from forerun.hardware.catalogue import Device
from forerun.memory.card import CardReplay, replay_on_card
from forerun.memory.replay import MemoryReplay
from forerun.plan.outcome import Reason
from forerun.plan.space import changed, with_batch
from forerun.records import MemoryBreakdown
from forerun.settings.schema import Settings
from forerun.trace import Trace

Ask = Callable[[Settings, Device], ForecastRequest]
"""Makes the request of settings on a device: workload, batch plan, and what the ledger knows of such runs."""
HOW_COMPUTED = {
    "precision": "fp32", "activation_checkpointing": "none", "cross_entropy": "full", "compile": "none",
    "compile_unit": "model", "model.attention": "auto", "optimizer.implementation": "auto",
}  # fmt: skip
"""Settings that no batch plan depends on, and the values under which one is remembered."""
WORTH_A_LINE = 4
"""Number of micro-batch sizes from which on three traces stand for all; fewer are traced one by one."""


@dataclass(frozen=True)
class Estimate:
    """Time and memory of one candidate: settings on a device."""

    settings: Settings
    device: Device
    step_seconds: float
    """The mean optimizer step over the batch plan."""
    training_seconds: float
    """All steps of the run."""
    device_bytes: float
    """Most that the device needs (conservative)."""
    host_share: float
    """Fraction of the step in which the device waits for the host."""
    state_bytes: int
    """Bytes of weights, gradients and optimizer state at the peak."""
    compiling_seconds: float = 0.0
    """Seconds of compiling before the first step."""
    is_cramped: bool = False
    """It fits only because the allocator gives cached memory back, which takes time that is not in the forecast."""

    @property
    def fits(self) -> bool:
        """Whether the conservative forecast is within the device's memory."""
        return self.device_bytes <= self.device.memory_bytes

    @property
    def size(self) -> int:
        """Samples in a micro-batch."""
        return self.settings.batch.micro_batch_size


@dataclass
class Workbench:
    """What all candidates share: requests, traces, and the processor time that the search may take."""

    ask: Ask
    seconds: float
    """Processor time after which no further class is begun."""
    started: float = field(default_factory=time.process_time)
    requests: dict[tuple[str, str], ForecastRequest] = field(default_factory=dict)
    traces: dict[tuple[str, BatchShape, bool], Trace] = field(default_factory=dict)
    lines: dict[tuple[str, int, int], TracedSizes] = field(default_factory=dict)
    replays: dict[tuple[str, int, int], dict[tuple[int, ...], MemoryReplay]] = field(default_factory=dict)
    """By step class, micro-batch size and accumulation: the longest step's memory with nothing in its way."""
    ended_early: bool = False

    def request(self, settings: Settings, device: Device) -> ForecastRequest:
        """The request of `settings`; data is opened once for all that differ only in how a batch is computed."""
        key = changed(settings, HOW_COMPUTED).hash, device.name
        if key not in self.requests:
            self.requests[key] = self.ask(settings, device)
        request, content = self.requests[key], settings.model_dump()
        computation = {path: content[path] for path in HOW_COMPUTED if "." not in path}
        computation |= {"model.attention": settings.model.attention, "optimizer": settings.optimizer.model_dump()}
        return replace(request, settings=changed(request.settings, computation))

    @property
    def is_out_of_time(self) -> bool:
        """Whether the time is over; `ended_early` remembers it for the plan's warnings."""
        over = time.process_time() - self.started > self.seconds
        self.ended_early = self.ended_early or over
        return over


class StepClass:
    """Candidates that differ in micro-batch size and accumulation only."""

    def __init__(self, settings: Settings, device: Device, bench: Workbench, sizes: list[int]):
        self.settings, self.device, self.bench = settings, device, bench
        self._sizes = sizes
        self._estimates: dict[tuple[int, int], Estimate] = {}
        self._costs = None
        # torch picks attention kernels by compute capability (sdp_utils.cpp): cards that share it share a trace.
        self._key = (
            f"{what_is_traced(settings)} {device.kind} {device.compute_capability} {device.attention_capability}"
        )
        self._short: int | None = None

    def at(self, size: int, accumulation: int) -> Estimate:
        """The candidate with `accumulation` micro-batches of `size`.

        Raises:
            ForerunError: the step cannot be built or traced.
        """
        key = size, accumulation
        if key not in self._estimates:
            compute = self._forecast if self.device.kind == "cpu" else self._estimate
            self._estimates[key] = compute(size, accumulation)
        return self._estimates[key]

    @property
    def estimates(self) -> list[Estimate]:
        """Every candidate of the class that was worked out so far."""
        return list(self._estimates.values())

    def trace_at(self, size: int, accumulation: int) -> Trace:
        """The step's trace at the longest length of the batch plan, in tokens."""
        request = self.bench.request(with_batch(self.settings, size, accumulation), self.device)
        return self._trace(request, size, accumulation, request.plan.longest.length)

    def _forecast(self, size: int, accumulation: int) -> Estimate:
        request = self.bench.request(with_batch(self.settings, size, accumulation), self.device)
        forecast = make_forecast(request)
        seconds = forecast.step.seconds.expected
        return Estimate(
            settings=with_batch(self.settings, size, accumulation),
            device=self.device,
            step_seconds=seconds,
            training_seconds=forecast.run.phases.training_seconds,
            device_bytes=forecast.memory.device_bytes.conservative,
            host_share=forecast.step.phases.host_seconds / seconds,
            state_bytes=_state_bytes(forecast.memory.breakdown),
            compiling_seconds=forecast.run.phases.compile_seconds,
        )

    def _estimate(self, size: int, accumulation: int) -> Estimate:
        settings = with_batch(self.settings, size, accumulation)
        request = self.bench.request(settings, self.device)
        plan, longest = request.plan, request.plan.longest.length
        mean = round(plan.padded_tokens / rows(plan))
        self._short = self._short or mean
        trace = self._trace(request, size, accumulation, longest)
        card = self._card(trace, size, accumulation)
        times = {longest: self._time(trace, request)}
        if mean < longest and self._short < longest:
            times[self._short] = self._time(self._trace(request, size, accumulation, self._short), request)
        update = times[longest].phases.optimizer_seconds
        working = at_length({length: t.seconds - t.phases.optimizer_seconds for length, t in times.items()}, mean)
        full_rows = plan.steps * size * accumulation * settings.parallel.data_ranks
        # The last step of an epoch may hold fewer rows: work goes by rows, the update and the data by steps.
        seconds = working * rows(plan) / full_rows + update + request.times.data_seconds_per_step
        nearest = times[min(times, key=lambda length: abs(length - mean))]
        return Estimate(
            settings=settings,
            device=self.device,
            step_seconds=seconds,
            training_seconds=seconds * total_steps(settings, plan),
            device_bytes=card.device_bytes.conservative,
            host_share=nearest.phases.host_seconds / max(nearest.seconds, 1e-12),
            state_bytes=_state_bytes(card.memory.breakdown),
            compiling_seconds=compiling_seconds(settings, trace, self.device, request.calibration),
            is_cramped=card.returns_cache,
        )

    def _card(self, trace: Trace, size: int, accumulation: int) -> CardReplay:
        replays = self.bench.replays.setdefault((self._key, size, accumulation), {})
        return replay_on_card(trace, self.device, keeps_curve=False, roomy_replays=replays)

    def _time(self, trace: Trace, request: ForecastRequest) -> StepTime:
        if self._costs is None:
            self._costs = choose_costs(self.device, [trace], request.calibration)
        return replay_clock(trace, self._costs)

    def _trace(self, request: ForecastRequest, size: int, accumulation: int, length: int) -> Trace:
        if accumulation == 1:
            return self._traced(request, BatchShape(size, length), is_whole=True)
        worth = [n for n in self._sizes if n >= SMALLEST]
        if size < SMALLEST or len(worth) < WORTH_A_LINE or self.settings.compile != "none":
            trace = self._traced(request, BatchShape(size, length), is_whole=False)
        else:
            key = self._key, length, worth[-1]
            if key not in self.bench.lines:
                self.bench.lines[key] = TracedSizes(
                    lambda n: self._traced(request, BatchShape(n, length), is_whole=False), worth[-1]
                )  # fmt: skip
            trace = self.bench.lines[key].at(size)
        return replace(trace, accumulation=accumulation)

    def _traced(self, request: ForecastRequest, shape: BatchShape, *, is_whole: bool) -> Trace:
        key = self._key, shape, is_whole
        if key not in self.bench.traces:
            settings = with_batch(request.settings, 1, 1 if is_whole else 2)
            self.bench.traces[key] = step_trace(replace(request, device=self.device), shape, settings=settings)
            give_back_memory()
        return self.bench.traces[key]


@dataclass
class CandidatePool:
    """The candidates of one device: those worked out, the classes they came from, and why others were left out."""

    device: Device
    estimates: list[Estimate] = field(default_factory=list)
    """Candidates that may be chosen."""
    reasons: list[Reason] = field(default_factory=list)
    """Why settings of all candidates differ from the original ones."""
    rejected: list[Reason] = field(default_factory=list)
    """Why classes were not traced, or cannot be."""
    classes: list[StepClass] = field(default_factory=list)

    def tried(self) -> list[Estimate]:
        """Every candidate that was worked out."""
        return [estimate for step_class in self.classes for estimate in step_class.estimates]

    def ranked(self) -> list[Estimate]:
        """Candidates that fit, the fastest first; among equals the one with more room."""
        fitting = {id(e): e for e in self.estimates if e.fits}.values()
        return sorted(fitting, key=lambda e: (run_seconds(e), e.device_bytes))


def run_seconds(estimate: Estimate) -> float:
    """Seconds of training and compiling of a candidate."""
    return estimate.training_seconds + estimate.compiling_seconds


def give_back_memory() -> None:
    """Free what a trace left in cycles, models above all: a plan makes dozens with the collector switched off."""
    gc.collect()
    # Objects that survive are frozen: else each collect() walks all earlier traces again, and a plan slows down.
    gc.freeze()


def what_is_traced(settings: Settings) -> str:
    """Everything that the trace of a step depends on, beside its shape and the device."""
    content = settings.model_dump(
        mode="json", exclude={"name", "schedule", "checkpoints", "evaluation", "data", "batch", "reliability"}
    )  # fmt: skip
    del content["optimizer"]["learning_rate"]
    content["data"] = settings.data.mean_tokens, settings.data.too_long, settings.data.source
    content["batch"] = settings.batch.sequence_length, settings.batch.padding
    return json.dumps(content, sort_keys=True)


def total_steps(settings: Settings, plan: BatchPlan) -> int:
    """Optimizer steps of the run, as a forecast counts them."""
    steps = math.ceil(settings.schedule.epochs * plan.steps)
    return steps if settings.schedule.max_steps is None else min(steps, settings.schedule.max_steps)


def rows(plan: BatchPlan) -> int:
    """Sequences of one epoch, packed ones as they are."""
    return sum(shape.size * number for shape, number in plan.shapes)


def _state_bytes(breakdown: MemoryBreakdown) -> int:
    return breakdown.parameter_bytes + breakdown.gradient_bytes + breakdown.optimizer_state_bytes
