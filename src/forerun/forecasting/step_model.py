"""Memory and time of a run's steps: traced at a few batch lengths, replayed, and put together over the batch plan."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from forerun.clock.between_ranks import job_of_trace
from forerun.clock.costs import Costs
from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import StepTime, replay_clock
from forerun.data.plan import BatchShape
from forerun.errors import FilesNotWritten
from forerun.experience import Correction, DeviceCalibration
from forerun.forecasting.arithmetic import main_format
from forerun.forecasting.compiling import compiling_seconds
from forerun.forecasting.lengths import at_length, shapes_to_trace
from forerun.forecasting.request import ForecastRequest
from forerun.forecasting.stages import forecast_pipeline, trace_pipeline
from forerun.forecasting.traces import generation_trace, scoring_trace, step_trace
from forerun.forecasting.varying import drawn_lengths, left_in_cache_bytes
from forerun.hardware.catalogue import Device
from forerun.memory.allocator import round_size
from forerun.memory.card import CardReplay, replay_on_card
from forerun.memory.replay import MemoryReplay, replay_memory
from forerun.records import MemoryBreakdown, RankKind
from forerun.trace import Call, Category, Trace
from forerun.units import GIGA

DATA = "data_seconds"
STATED_DISK_BYTES_PER_SECOND = 1 * GIGA
"""Checkpoint writes on a rented machine; stated, not measured."""


@dataclass(frozen=True)
class TracedStep:
    """One traced shape, replayed."""

    shape: BatchShape
    trace: Trace
    time: StepTime


@dataclass
class StepModel:
    """Steps of one request: the longest shape for memory, several for time."""

    request: ForecastRequest
    traced: list[TracedStep]
    memory: MemoryReplay
    card: CardReplay | None
    """The longest step on the GPU and whether it fits; None on the host."""
    evaluation_peaks: dict[str, MemoryBreakdown]
    """Bytes at the peak of scoring and generating, by name; the state of training stays beside them."""
    costs: Costs
    peak_flops_per_second: float
    disk_bytes_per_second: float
    disk_note: str = ""
    """Why the disk's speed is not measured, where it should be."""
    frozen: list[TracedStep] = field(default_factory=list)
    scoring: TracedStep | None = None
    """One evaluation batch at the middle length; None when nothing is evaluated."""
    kinds: list[RankKind] = field(default_factory=list)
    """Of a pipeline: each of its stages; the rest is that of the stage which needs most memory."""
    generation: tuple[float, float] | None = None
    """Seconds to fill the cache of one batch of the longest prompts, and of each token after that; None where nothing
    is generated token by token."""

    @property
    def longest(self) -> TracedStep:
        """The step in which memory peaks."""
        return self.traced[-1]

    def epoch_seconds(self, *, frozen: bool = False) -> float:
        """Training seconds of one epoch over the batch plan, data included."""
        return self.mean_step_seconds(frozen=frozen) * self.request.plan.steps

    def mean_step_seconds(self, *, frozen: bool = False) -> float:
        """Seconds of the mean warm step over the plan."""
        return sum(self.mean_phases(frozen=frozen).values())

    def mean_phases(self, *, frozen: bool = False) -> dict[str, float]:
        """Seconds of each phase in the mean step of the plan, by field name of StepPhases, past runs regarded."""
        factors = self.corrected_by
        phases = self._modelled_phases(self.frozen if frozen and self.frozen else self.traced)
        return {name: value * factors["data" if name == DATA else "step"] for name, value in phases.items()}

    @cached_property
    def corrected_by(self) -> dict[str, float]:
        """Factors of past runs on the seconds of steps and of data."""
        phases, correction = self._modelled_phases(self.traced), self.request.correction or Correction()
        data = phases.pop(DATA)
        return {"step": correction.factor("step", sum(phases.values())), "data": correction.factor("data", data)}

    def _modelled_phases(self, traced: list[TracedStep]) -> dict[str, float]:
        plan = self.request.plan
        phases = {name: 0.0 for name in traced[0].time.phases.model_dump()}
        for name in phases:
            values = {t.shape.length: getattr(t.time.phases, name) for t in traced}
            if name == "optimizer_seconds":
                phases[name] = statistics.fmean(values.values())
                continue
            micro_steps, waves = traced[0].trace.accumulation, self._micro_steps_of_a_rank()
            whole = sum(
                number * at_length(values, shape.length) * shape.size / traced[0].shape.size
                for shape, number in plan.shapes
                if number
            )
            phases[name] = whole / micro_steps / plan.steps * waves / plan.micro_batches
        phases[DATA] += self.request.times.data_seconds_per_step
        return phases

    def _micro_steps_of_a_rank(self) -> int:
        """Micro-steps of one rank in an epoch; ranks that the last ones are not enough for wait for the others."""
        settings = self.request.settings
        whole, rest = divmod(self.request.plan.micro_batches, settings.micro_batches_per_step)
        return whole * settings.batch.gradient_accumulation_steps + math.ceil(rest / settings.parallel.data_ranks)

    @property
    def compile_seconds(self) -> float:
        """Seconds until the first compiled step runs, where nothing is cached."""
        request = self.request
        return compiling_seconds(request.settings, self.longest.trace, request.device, request.calibration)

    def scoring_seconds_per_sample(self) -> float:
        """Seconds to score one sample at the plan's mean padded length, batch as in training."""
        if self.scoring is None:
            return 0.0
        mean_length = self.request.plan.padded_tokens / max(1, self.request.plan.samples)
        shape = self.scoring.shape
        return self.scoring.time.seconds / shape.size * mean_length / shape.length

    def mean_flops(self, name: str) -> float:
        """FLOP of the mean step; `name` is model_flops or hardware_flops."""
        plan = self.request.plan
        values = {t.shape.length: getattr(t.time, name) for t in self.traced}
        whole = sum(
            number * at_length(values, shape.length) * shape.size / self.traced[0].shape.size
            for shape, number in plan.shapes
            if number
        )
        return whole / self.traced[0].trace.accumulation / plan.steps / self.request.settings.parallel.data_ranks


def model_steps(request: ForecastRequest, timed_calls: dict[Call, float] | None = None) -> StepModel:
    """Trace and replay the steps of `request`; calls timed on the CPU are looked up in, and added to, `timed_calls`."""
    settings, device = request.settings, request.device
    if settings.parallel.pipeline > 1:
        return _model_pipeline(request, timed_calls)
    shapes = shapes_to_trace(request.plan, settings.batch.micro_batch_size)
    if shapes[-1].length < request.plan.longest.length:
        shapes.append(BatchShape(settings.batch.micro_batch_size, request.plan.longest.length))
    traces = [step_trace(request, shape) for shape in shapes]
    frozen = []
    if settings.schedule.frozen_encoder_epochs > 0:
        frozen = [step_trace(request, shape, frozen_encoder=True) for shape in shapes]
    middle = shapes[len(shapes) // 2]
    evaluates = settings.evaluation.examples or request.times.final_evaluation_examples
    scoring = [scoring_trace(request, middle)] if evaluates else []
    evaluation = evaluation_traces(request) if evaluates else {}
    generation = evaluation.get("generation")
    evaluated = [*scoring, *([generation] if generation else [])]
    costs = choose_costs(device, [*traces, *frozen], request.calibration, timed_calls, evaluated)
    card = None if device.kind == "cpu" else _card(request, shapes, traces)
    disk, disk_note = _disk(request)
    memory = card.memory if card else replay_memory(traces[-1], is_host=True)
    return StepModel(
        request=request,
        traced=[TracedStep(s, t, replay_clock(t, costs)) for s, t in zip(shapes, traces, strict=True)],
        memory=memory,
        card=card,
        evaluation_peaks=evaluation_peaks(evaluation, memory, traces[-1], is_host=device.kind == "cpu"),
        costs=costs,
        peak_flops_per_second=_peak(device, traces[-1], costs),
        disk_bytes_per_second=disk,
        disk_note=disk_note,
        frozen=[TracedStep(s, t, replay_clock(t, costs)) for s, t in zip(shapes, frozen, strict=False)],
        scoring=TracedStep(middle, scoring[0], replay_clock(scoring[0], costs)) if scoring else None,
        generation=generation_seconds(generation, costs) if generation else None,
    )


def _card(request: ForecastRequest, shapes: Sequence[BatchShape], traces: Sequence[Trace]) -> CardReplay:
    """The longest step on the GPU, beside what steps of other lengths leave in the cache."""
    by_length = {shape.length: trace for shape, trace in zip(shapes, traces, strict=True)}
    left = left_in_cache_bytes(by_length, drawn_lengths(request.plan, request.settings))
    return replay_on_card(traces[-1], request.device, left_bytes=left)


def _model_pipeline(request: ForecastRequest, timed_calls: dict[Call, float] | None) -> StepModel:
    settings, device = request.settings, request.device
    shape = BatchShape(settings.batch.micro_batch_size, request.plan.longest.length)
    pipeline = trace_pipeline(request, shape)
    # Stages score in turn, so together they take what one process with the whole model does.
    evaluates = settings.evaluation.examples or request.times.final_evaluation_examples
    scoring = [scoring_trace(request, shape)] if evaluates else []
    traces = [*pipeline.longer, *pipeline.shorter]
    costs = choose_costs(device, traces, request.calibration, timed_calls, scoring)
    job = forecast_pipeline(pipeline, device, costs)
    return StepModel(
        request=request, traced=[TracedStep(shape, job.trace, job.time)], memory=job.card.memory,
        card=None if device.kind == "cpu" else job.card,
        evaluation_peaks={}, costs=costs, peak_flops_per_second=_peak(device, job.trace, costs),
        disk_bytes_per_second=_disk(request)[0], kinds=job.kinds,
        scoring=TracedStep(shape, scoring[0], replay_clock(scoring[0], costs)) if scoring else None,
    )  # fmt: skip


def evaluation_traces(request: ForecastRequest) -> dict[str, Trace]:
    """Scoring, and generation where the model does that, at the longest length in batches as in training."""
    shape = BatchShape(request.settings.batch.micro_batch_size, request.plan.longest.length)
    prompts = BatchShape(shape.size, request.times.generated.longest_prompt or shape.length)
    generation = generation_trace(request, prompts)
    traces = {"scoring": scoring_trace(request, shape)}
    return traces if generation is None else {**traces, "generation": generation}


def generation_seconds(trace: Trace, costs: Costs) -> tuple[float, float]:
    """Seconds of a trace of `trace_generation`: filling the cache, and each further token."""
    first, second = (replay_clock(replace(trace, accumulation=1 + n), costs).seconds for n in (1, 2))
    return 2 * first - second, second - first


def evaluation_peaks(
    traces: Mapping[str, Trace], training: MemoryReplay, trained: Trace, *, is_host: bool
) -> dict[str, MemoryBreakdown]:
    """Peaks of evaluation, during which training's optimizer state stays allocated."""
    owned = [s for s in trained.storages if s.owner is Category.OPTIMIZER_STATE]
    state = sum(round_size(s.bytes) for s in owned)
    peaks = {}
    for name, trace in traces.items():
        replay = replay_memory(trace, is_host=is_host)
        beside = max(0, training.start_bytes - replay.start_bytes - state)
        own = replay.breakdown
        peaks[name] = own.model_copy(
            update={"optimizer_state_bytes": state, "other_bytes": own.other_bytes + beside}
        )  # fmt: skip
    return peaks


def choose_costs(
    device: Device,
    traces: list[Trace],
    calibration: DeviceCalibration | None = None,
    timed_calls: dict[Call, float] | None = None,
    evaluated: Sequence[Trace] = (),
) -> Costs:
    """Operators timed here for the device at hand (the CPU), priors for every other; calibration goes before both."""
    if device.kind != "cpu":
        job = job_of_trace(device, traces[0])
        return PriorCosts.of(traces[0], device, world_size=traces[0].world_size, calibration=calibration, job=job)
    from forerun.forecasting.host_costs import host_costs  # operators are timed with PyTorch

    return host_costs(traces, calibration, timed_calls, evaluated)


def _disk(request: ForecastRequest) -> tuple[float, str]:
    """Bytes per second of a checkpoint's writing, and what the reader must know of that figure."""
    if request.calibration is not None:
        return request.calibration.disk_write_bytes_per_second, ""
    if request.device.kind != "cpu":
        return STATED_DISK_BYTES_PER_SECOND, ""
    from forerun.hardware.micro_benchmarks import disk_speed

    try:
        return disk_speed(Path.cwd())[0], ""
    except FilesNotWritten as error:
        assumption = f"{STATED_DISK_BYTES_PER_SECOND / GIGA:.0f} GB/s is assumed for checkpoints"
        return STATED_DISK_BYTES_PER_SECOND, f"{str(error).partition('. Free')[0]}; {assumption}."


def _peak(device: Device, trace: Trace, costs: Costs) -> float:
    """FLOP/s that mfu is measured against."""
    if device.kind == "cuda":
        is_wide = trace.compute_dtype == "float32"  # then convolutions and products of matrices may differ
        return device.peak(main_format(trace, device) if is_wide else trace.compute_dtype)
    from forerun.forecasting.host_costs import measured_peak

    rates = (call.flops / costs.device_seconds(call) for call in trace.calls if call.flops)
    return max([measured_peak(trace.compute_dtype), *rates])
