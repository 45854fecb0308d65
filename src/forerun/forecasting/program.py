"""The forecast of an unmodified program, from a run of it on the virtual GPU (`forerun exec`).

Memory is that of everything the program did, as `torch.cuda.max_memory_allocated` would show it. The step is the mean
of the steps that are like the last one; time between them that only the host takes is not in it.
"""

import contextlib
import dataclasses
import hashlib
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from forerun.clock.between_ranks import GPUS_PER_MACHINE, job_of_trace
from forerun.clock.host_speed import host_shares
from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import StepTime, replay_clock
from forerun.errors import MissingPeak
from forerun.experience import DeviceCalibration
from forerun.forecasting.arithmetic import main_format
from forerun.forecasting.before_steps import before_warnings, range_without_steps, seconds_before
from forerun.forecasting.collectives import count_collectives, data_parallel_ranks
from forerun.forecasting.findings import birth_lines, find_faults
from forerun.forecasting.held_tensors import ProgramFinding
from forerun.forecasting.later_steps import later_steps_warnings
from forerun.forecasting.live_card import clock_of, memory_of
from forerun.forecasting.loop_rest_times import LoopRestTime, rests_until_the_end
from forerun.forecasting.made_with import made_with
from forerun.forecasting.program_records import (
    AssumedValue,
    CardForecast,
    OutOfMemoryPoint,
    RankForecast,
    ScriptReport,
)
from forerun.forecasting.program_run import (
    EarlierLoop,
    earlier_loops,
    last_step,
    loop_warnings,
    mean_seconds,
    not_modelled,
    steps_from,
    timed_steps,
    whole_run,
)
from forerun.forecasting.program_warnings import compile_seconds, program_warnings, speed_warnings
from forerun.forecasting.ranges import PROGRAM, group_of, spread, step_range
from forerun.hardware.catalogue import Device
from forerun.hardware.list_prices import price_text
from forerun.memory.card import CardReplay, replay_on_card
from forerun.memory.explanation import RankExchange
from forerun.memory.overhead import outside_bytes
from forerun.memory.replay import category
from forerun.records import (
    Forecast,
    ForecastDetail,
    MemoryForecast,
    ParameterCounts,
    StepForecast,
    StepPhases,
)
from forerun.trace import Trace
from forerun.virtual.cuda.file_layer import WrittenFiles
from forerun.virtual.cuda.launchers import Program
from forerun.virtual.cuda.peers import Peers, peers_of
from forerun.virtual.cuda.run import ProgramRun, run_program
from forerun.virtual.cuda.steps import StepWatcher
from forerun.virtual.cuda.trainer_lengths import ProgramLength

MOST_ASSUMED = 50
"""Assumptions that are listed; the rest are counted."""


class ProgramForecast(Forecast):
    """A forecast with what was seen of the program."""

    script: ScriptReport
    assumed: list[AssumedValue] = []
    findings: list[ProgramFinding] = []
    collectives: list[RankExchange] = []
    """What this rank exchanges with others in the last step."""
    rank: int = 0
    """The rank that was run."""
    ranks: list[RankForecast] = []
    """Where several were asked for: each of them; the forecast is that of the one that needs most memory."""
    cards: list[CardForecast] = []
    """Where one process drives several: each of them; memory is that of the one that needs most."""
    earlier_loops: list[EarlierLoop] = []
    """Training loops before the one whose step is forecast."""
    rests: list[LoopRestTime] = []
    """What the program does after each pass of its loops, beside the steps."""
    out_of_memory: OutOfMemoryPoint | None = None


def deciding_card(forecast: ProgramForecast) -> int:
    """The number of the card that needs most memory, of those that the program's process drives."""
    return max(forecast.cards, key=lambda card: card.device_bytes).number if forecast.cards else 0


def deciding(forecasts: Sequence[ProgramForecast]) -> ProgramForecast:
    """Of the forecasts of several ranks of one program that which needs most memory, with a row for each of them."""
    rows = [
        RankForecast(
            rank=each.rank, fits=each.fits, peak_allocated_bytes=each.memory.peak_allocated_bytes,
            device_bytes=int(each.memory.device_bytes.expected), step_seconds=each.step.seconds.expected,
        )
        for each in forecasts
    ]  # fmt: skip
    largest = max(forecasts, key=lambda each: each.memory.device_bytes.expected)
    return largest.model_copy(update={"ranks": rows, "fits": all(row.fits for row in rows)})


def forecast_program(
    program: Program,
    command: Sequence[str],
    devices: Sequence[Device],
    *,
    most_steps: int | None = None,
    total_steps: int | None = None,
    price_per_hour: float | None = None,
    files: WrittenFiles = WrittenFiles.LAYER,
    rank: int = 0,
    peers: Peers | None = None,
) -> tuple[list[ProgramForecast], ProgramRun]:
    """Run `program` as `rank` on the first of `devices` and forecast it on each, from what it did on the first.

    Where it runs out of memory there, larger cards are forecast from a second run, on the largest; where it goes on
    after that, each card has a run of its own. A card without a peak for a dtype of the program is left out, and the
    first forecast says so. `total_steps` is the length of the whole run where the program does not say it. `peers` are
    the ranks beside this one in the first run; without them they are run for it alone.

    Raises:
        MissingPeak: no card has the peaks that the program needs.
    """

    def run_on(device: Device, peers: Peers | None = None) -> ProgramRun:
        alone = peers_of(program, command, ["--gpu", device.name], rank)
        with contextlib.nullcontext(peers) if peers is not None else alone as others:
            return run_program(
                program, device, memory_of(device, program.cards), most_steps=most_steps, files=files,
                clock=clock_of(device), rank=rank, peers=others,
            )  # fmt: skip

    run = run_on(devices[0], peers)
    runs = {device.name: run for device in devices}
    larger = [device for device in devices if device.memory_bytes > devices[0].memory_bytes]
    if run.between_failures is not None:  # what it does is for this card
        runs |= {device.name: run_on(device) for device in devices[1:]}
    elif run.out_of_memory is not None and larger:
        second = run_on(max(larger, key=lambda device: device.memory_bytes))
        runs |= {device.name: second for device in larger}
    here = program.ranks_per_node if program.nodes > 1 else max(GPUS_PER_MACHINE, program.ranks_per_node)
    reading = RunReading(gpus_per_machine=here, network=program.network, counts_before=True)
    forecasts: list[ProgramForecast] = []
    refusals: list[MissingPeak] = []
    for device in devices:
        try:
            forecasts.append(
                forecast_run(
                    runs[device.name], device, command, program.world_size, total_steps, price_per_hour, reading=reading
                )
            )
        except MissingPeak as error:
            refusals.append(error)
    if not forecasts:
        raise refusals[0]
    forecasts[0].warnings.extend(f"A card is left out. {error}" for error in refusals)
    forecasts = [each.model_copy(update={"rank": rank}) for each in forecasts]
    if program.unknown_ranks:
        text = f"{program.unknown_ranks} leaves the number of GPUs to the machine: taken as 1. Give --nproc-per-node."
        forecasts = [each.model_copy(update={"warnings": [*each.warnings, text]}) for each in forecasts]
    return forecasts, run


def replay_whole(trace: Trace, device: Device) -> CardReplay:
    """Everything that a program did, on the card; after it ran out of memory and went on, what it did from then on."""
    return replay_on_card(dataclasses.replace(trace, warm_from=trace.recovered_at), device, passes=1)


@dataclass(frozen=True)
class RunReading:
    """What of a run is forecast, and at which speeds."""

    replay: Callable[[Trace, Device], CardReplay] = replay_whole
    """What of the trace memory is that of."""
    calibration: DeviceCalibration | None = None
    """Measured speeds of the device; stated ones stand in for them."""
    step_weights: Sequence[float] | None = None
    """What each step after the first counts for in the mean step; None: those like the last one count alike."""
    gpus_per_machine: int = GPUS_PER_MACHINE
    network: str | None = None
    """What joins machines; None takes what is usual for the device, and says so."""
    counts_before: bool = False
    """The run is a whole program's: what it does before its first step is a part of it."""


def forecast_run(
    run: ProgramRun, device: Device, command: Sequence[str], world_size: int, total_steps: int | None,
    price_per_hour: float | None, *, reading: RunReading = RunReading(),
) -> ProgramForecast:  # fmt: skip
    """The forecast of a program that ran, on one device; `command` is how it was started."""
    trace, watcher = run.session.recorder.trace, run.watcher
    trace.world_size, part = world_size, trace
    if (window := run.between_failures) is not None:
        part = dataclasses.replace(trace, events=trace.events[: window[1]], recovered_at=window[0])
    by_card = [reading.replay(part.on_card(number), device) for number in range(trace.cards)]
    memory = max(by_card, key=lambda each: each.device_bytes.expected)
    trace.gpus_per_machine, trace.network = reading.gpus_per_machine, reading.network
    job = job_of_trace(device, trace)
    costs = PriorCosts.of(trace, device, world_size=world_size, calibration=reading.calibration, job=job)
    steps = _step_times(trace, watcher, costs, reading.step_weights)
    earlier, length = earlier_loops(trace, watcher, costs), _length(watcher, total_steps)
    length, rests = rests_until_the_end(trace, watcher.loop, length, costs, mean_seconds(steps))
    step = _step(steps, watcher, costs, trace, device)
    before = 0.0
    if reading.counts_before:
        before = seconds_before(run, costs, [*(each.step_seconds for each in earlier), mean_seconds(steps)])
    band = step.seconds if steps else range_without_steps(run, costs, before)
    whole = whole_run(
        steps, length, watcher, trace, device,
        costs=costs, step=band, breakdown=memory.memory.breakdown, saved_bytes=run.saved_bytes,
        compile_seconds=compile_seconds(run, device), price_per_hour=price_per_hour, earlier=earlier, rests=rests,
        before_seconds=before,
    )  # fmt: skip
    text = " ".join(command)
    return ProgramForecast(
        settings_hash=hashlib.sha256(text.encode()).hexdigest()[:16],
        gpu=device.name,
        world_size=world_size,
        fits=all(each.fits for each in by_card) and run.out_of_memory is None,
        parameters=ParameterCounts(total=trace.total_parameters, trainable=trace.trainable_parameters),
        memory=_memory(memory, device, world_size),
        step=step,
        run=whole,
        warnings=program_warnings(run, device, costs, length, has_steps=bool(steps), has_time=before > 0)
        + before_warnings(before, watcher.loop, whole.seconds.expected)
        + loop_warnings(earlier, run, rests)
        + list(later_steps_warnings(trace, watcher.loop))
        + speed_warnings(step.mfu, trace),
        not_modelled=not_modelled(run, costs, length),
        detail=_detail(device, price_per_hour),
        script=_script(run, text, length),
        assumed=[
            AssumedValue(line=each.line, what=each.what, value=each.value[:80])
            for each in run.assumptions[:MOST_ASSUMED]
        ],
        findings=find_faults(
            trace.on_card(by_card.index(memory)), watcher, device, memory.memory, mean_seconds(steps)
        ),
        collectives=count_collectives(last_step(trace, watcher)),
        earlier_loops=earlier,
        cards=_cards(by_card),
        rests=rests,
        out_of_memory=_out_of_memory(run),
    )  # fmt: skip


def _script(run: ProgramRun, command: str, length: ProgramLength | None) -> ScriptReport:
    spans = run.watcher.spans
    return ScriptReport(
        command=command,
        exit_code=run.exit_code,
        steps_seen=len(spans),
        warm_from_step=run.watcher.warm_from + 1 if spans else None,
        wall_seconds=run.wall_seconds,
        host_peak_bytes=run.host_peak_bytes,
        length_known_from=None if length is None else length.source,
    )


def _detail(device: Device, price_per_hour: float | None) -> ForecastDetail:
    return ForecastDetail(device_name=device.name, versions=made_with(), price=price_text(device, price_per_hour))


def _length(watcher: StepWatcher, total_steps: int | None) -> ProgramLength | None:
    """What the program says of its length, unless `total_steps` is stated."""
    length = watcher.loop.whole_length
    if total_steps is None:
        return length
    total_steps = round(watcher.loop.stage.share * total_steps)
    stated = ProgramLength(total_steps, "--total-steps")
    return (
        stated if length is None else dataclasses.replace(length, steps=total_steps, source=stated.source, clock=None)
    )


def _cards(replays: Sequence[CardReplay]) -> list[CardForecast]:
    """A row for each card that the process drives; none where it is one."""
    return [
        CardForecast(
            number=number, fits=each.fits, peak_allocated_bytes=each.memory.peak_allocated_bytes,
            device_bytes=int(each.device_bytes.expected),
        )
        for number, each in enumerate(replays)
        if len(replays) > 1
    ]  # fmt: skip


def _step_times(
    trace: Trace, watcher: StepWatcher, costs: PriorCosts, weights: Sequence[float] | None
) -> list[StepTime]:
    """Times of the warm steps; with `weights` one, the mean of those after the first."""
    if weights is None:
        return [replay_clock(part, costs) for part in timed_steps(trace, watcher.loop)]
    times = [replay_clock(part, costs) for part in steps_from(trace, watcher.loop, 1)]

    def mean(values: Iterable[float]) -> float:
        return max(0.0, sum(weight * value for weight, value in zip(weights, values, strict=True)))

    phases = {name: mean(getattr(time.phases, name) for time in times) for name in StepPhases.model_fields}
    flops = [mean(getattr(time, name) for time in times) for name in ("model_flops", "hardware_flops")]
    return [dataclasses.replace(times[-1], phases=StepPhases(**phases), model_flops=flops[0], hardware_flops=flops[1])]


def _memory(card: CardReplay, device: Device, world_size: int) -> MemoryForecast:
    return MemoryForecast(
        peak_allocated_bytes=card.memory.peak_allocated_bytes,
        peak_reserved_bytes=card.memory.peak_reserved_bytes,
        device_bytes=card.device_bytes,
        context_bytes=int(outside_bytes(device, world_size).expected),
        capacity_bytes=device.memory_bytes,
        breakdown=card.memory.breakdown,
    )


def _step(steps: list[StepTime], watcher: StepWatcher, costs: PriorCosts, trace: Trace, device: Device) -> StepForecast:
    if not steps or not mean_seconds(steps):  # none, or of a program that is on the host and does little
        return StepForecast(
            seconds=spread(0.0, 1.0, 1.0), phases=StepPhases(), model_flops=0, hardware_flops=0, mfu=0,
            tokens_per_second=0, samples_per_second=0,
        )  # fmt: skip
    last = last_step(trace, watcher)
    seconds, ranks = mean_seconds(steps), data_parallel_ranks(last)
    hosts = host_shares([(last, replay_clock(last, costs))], costs)
    model_flops = statistics.fmean(step.model_flops for step in steps)
    phases = {name: statistics.fmean(getattr(step.phases, name) for step in steps) for name in StepPhases.model_fields}
    return StepForecast(
        seconds=step_range(seconds, group_of(trace, costs, PROGRAM), hosts),
        phases=StepPhases(**phases),
        model_flops=model_flops,
        hardware_flops=statistics.fmean(step.hardware_flops for step in steps),
        mfu=model_flops / (seconds * device.peak(main_format(last, device)) * trace.cards),
        tokens_per_second=ranks * watcher.loop.tokens_per_step / seconds,
        samples_per_second=ranks * watcher.loop.samples_per_step / seconds,
    )


def _out_of_memory(run: ProgramRun) -> OutOfMemoryPoint | None:
    report = run.out_of_memory
    return None if report is None else OutOfMemoryPoint(
        line=report.line, tried_bytes=report.tried_bytes, allocated_bytes=report.allocated_bytes, alive=_alive(run)
    )  # fmt: skip


def _alive(run: ProgramRun) -> list[dict[str, Any]]:
    """The largest storages that were alive when an allocation failed, with their category and the line of each."""
    trace = run.session.recorder.trace
    indices = [index for index in run.session.card.largest_at_failure if 0 <= index < len(trace.storages)]
    lines = birth_lines(trace, set(indices))
    return [
        {"bytes": trace.storages[i].bytes, "category": category(trace.storages[i]).value, "line": lines.get(i, "")}
        for i in indices
    ]
