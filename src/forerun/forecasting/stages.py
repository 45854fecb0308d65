"""The stages of a pipeline that settings name: each traced once, all played together, the worst deciding the fit.

A pipeline goes on in the same way once it is full, so where it has many micro-batches two shorter ones are traced, and
what each further micro-batch takes, seconds and bytes (PyTorch keeps a buffer for each that is received), is their
difference. `gpipe` is traced whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from forerun.clock.costs import Costs
from forerun.clock.job_step import JobStep, RankStep, RankTime, job_step, rank_step
from forerun.clock.timeline import StepTime, replay_clock
from forerun.data.plan import BatchShape
from forerun.forecasting.kinds import as_text
from forerun.forecasting.request import ForecastRequest
from forerun.forecasting.traces import stage_traces
from forerun.hardware.catalogue import Device
from forerun.memory.card import CardReplay, replay_on_card
from forerun.memory.replay import replay_memory
from forerun.records import Range, RankKind, StepPhases
from forerun.settings.schema import Settings
from forerun.trace import Trace


@dataclass(frozen=True)
class TracedPipeline:
    """Every stage of a pipeline, with as many micro-batches as were traced."""

    settings: Settings
    longer: list[Trace]
    """One trace for each stage."""
    shorter: list[Trace]
    """With fewer micro-batches, by what the pipeline repeats; empty where all of the step's are in `longer`."""

    @property
    def count(self) -> int:
        """Micro-batches of a step."""
        return self.settings.batch.gradient_accumulation_steps


def trace_pipeline(request: ForecastRequest, shape: BatchShape) -> TracedPipeline:
    """Trace each stage.

    Raises:
        UntraceableOp, InvalidSettings, NotSupported, UnknownModel: as `trace_step`.
    """
    settings, parallel = request.settings, request.settings.parallel
    count, one_round = settings.batch.gradient_accumulation_steps, parallel.pipeline
    # a round is under way at most, as the first comes back before the next goes in; with parts the ends meet later
    full = one_round + 1 if parallel.virtual_stages == 1 else (parallel.virtual_stages + 1) * one_round

    more = one_round if parallel.virtual_stages > 1 else 1  # interleaved schedules go on round by round
    rest = (count - full) % more
    if parallel.schedule == "gpipe" or count <= 2 * (full + rest) + more:  # two shorter steps would take as long
        (longer,) = stage_traces(request, settings, shape, [count])
        return TracedPipeline(settings, longer, [])
    # the shorter one first: what a model did before stays in the memory that is reserved
    shorter, longer = stage_traces(request, settings, shape, [full + rest, full + rest + more])
    return TracedPipeline(settings, longer, shorter)


@dataclass(frozen=True)
class PipelineForecast:
    """What the stages of a pipeline come to."""

    worst: int
    """The stage that needs most memory."""
    trace: Trace
    """Its trace, with the parameters of all stages."""
    card: CardReplay
    time: StepTime
    """The job's step as that stage spends it; FLOP are the mean over stages."""
    kinds: list[RankKind]


def forecast_pipeline(pipeline: TracedPipeline, device: Device, costs: Costs) -> PipelineForecast:
    """Memory of each stage and the step of the job."""
    settings, traces = pipeline.settings, pipeline.longer
    ranks = settings.parallel.world_size // settings.parallel.pipeline
    cards = [_replay(trace, device) for trace in traces]
    times = [replay_clock(trace, costs) for trace in traces]
    steps = _steps(traces, ranks, costs)
    job = job_step(steps)
    if pipeline.shorter:
        more = traces[0].accumulation - pipeline.shorter[0].accumulation
        rounds = (pipeline.count - traces[0].accumulation) // more
        job = _lengthened(job, job_step(_steps(pipeline.shorter, ranks, costs)), rounds)
        shorter = [_replay(trace, device) for trace in pipeline.shorter]
        cards = [_larger(card, before, rounds) for card, before in zip(cards, shorter, strict=True)]
    worst = max(range(len(cards)), key=lambda stage: cards[stage].device_bytes.conservative)
    longer = pipeline.count / traces[0].accumulation
    own, worst_trace = times[worst], traces[worst]
    busy = job.ranks[worst * ranks].busy
    return PipelineForecast(
        worst=worst,
        trace=replace(
            worst_trace,
            total_parameters=sum(trace.total_parameters for trace in traces),
            trainable_parameters=sum(trace.trainable_parameters for trace in traces),
            checkpoint_bytes=sum(trace.checkpoint_bytes for trace in traces),
            accumulation=pipeline.count, micro_steps=pipeline.count,
        ),
        card=cards[worst],
        time=replace(
            own,
            phases=StepPhases(**{f"{name}_seconds": seconds for name, seconds in busy.items()}),
            model_flops=longer * sum(time.model_flops for time in times) / len(times),
            hardware_flops=longer * sum(time.hardware_flops for time in times) / len(times),
        ),
        kinds=[
            _kind(settings, device, card, step, job.ranks[step.rank], longer)
            for card, step in zip(cards, steps, strict=True)
        ],
    )  # fmt: skip


def _replay(trace: Trace, device: Device) -> CardReplay:
    """Memory of a stage on its GPU, or in a process of the host, which has no card that it could miss."""
    if device.kind != "cpu":
        return replay_on_card(trace, device)
    memory = replay_memory(trace, is_host=True)
    peak = float(memory.peak_allocated_bytes)
    return CardReplay(memory, True, Range(optimistic=peak, expected=peak, conservative=peak), False)


def _steps(traces: Sequence[Trace], ranks: int, costs: Costs) -> list[RankStep]:
    """The warm step of one rank of each stage; the first rank of a stage is `stage * ranks`."""
    warm = [trace.part(trace.warm_from, len(trace.events)) for trace in traces]
    return [rank_step(stage * ranks, trace, costs) for stage, trace in enumerate(warm)]


def _lengthened(longer: JobStep, shorter: JobStep, rounds: int) -> JobStep:
    """The step with `rounds` more rounds of micro-batches, each of which takes what the last one did."""

    def more(value: float, before: float) -> float:
        return value + rounds * (value - before)

    ranks = {}
    for rank, time in longer.ranks.items():
        other = shorter.ranks[rank]
        busy = {name: more(value, other.busy.get(name, 0.0)) for name, value in time.busy.items()}
        ranks[rank] = RankTime(busy, more(time.bubble_seconds, other.bubble_seconds))
    return JobStep(more(longer.seconds, shorter.seconds), ranks)


def _larger(longer: CardReplay, shorter: CardReplay, rounds: int) -> CardReplay:
    """Memory with `rounds` more rounds of micro-batches, each of which adds what the last one did."""

    memory, before = longer.memory, shorter.memory
    allocated = rounds * max(0, memory.peak_allocated_bytes - before.peak_allocated_bytes)
    reserved = rounds * max(0, memory.peak_reserved_bytes - before.peak_reserved_bytes)
    own = memory.breakdown
    return replace(
        longer,
        memory=replace(
            memory,
            breakdown=own.model_copy(update={"activation_bytes": own.activation_bytes + allocated}),
            peak_allocated_bytes=memory.peak_allocated_bytes + allocated,
            peak_reserved_bytes=memory.peak_reserved_bytes + reserved,
        ),
        device_bytes=Range(**{name: value + reserved for name, value in longer.device_bytes.model_dump().items()}),
    )


def _kind(
    settings: Settings, device: Device, card: CardReplay, step: RankStep, time: RankTime, longer: float
) -> RankKind:
    """What the ranks of one stage need and do; `longer` says how many times as long as `step` theirs is."""
    ranks = settings.parallel.world_size // settings.parallel.pipeline
    first, memory = step.rank, card.memory
    return RankKind(
        ranks=as_text(range(first, first + ranks)), count=ranks, stages=[first // ranks], rank=first,
        fits=card.device_bytes.conservative <= device.memory_bytes,
        peak_allocated_bytes=memory.peak_allocated_bytes, peak_reserved_bytes=memory.peak_reserved_bytes,
        device_bytes=int(card.device_bytes.expected),
        compute_seconds=sum(time.busy.get(name, 0.0) for name in ("forward", "backward", "optimizer")),
        communication_seconds=longer * step.communication_seconds,
        exposed_communication_seconds=time.busy.get("communication", 0.0), bubble_seconds=time.bubble_seconds,
    )  # fmt: skip
