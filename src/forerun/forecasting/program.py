"""The forecast of an unmodified program, from a run of it on the virtual GPU (`forerun exec`).

Memory is that of everything the program did, as `torch.cuda.max_memory_allocated` would show it. The step is the mean
of the steps that are like the last one; time between them that only the host takes is not in it.
"""

import dataclasses
import hashlib
import statistics
from collections.abc import Sequence
from typing import Any

from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import StepTime, replay_clock
from forerun.forecasting.findings import ProgramFinding, find_faults
from forerun.forecasting.ranges import shares, spread
from forerun.forecasting.virtual_cuda import clock_of
from forerun.forecasting.virtual_gpu import CardMemory
from forerun.hardware.catalogue import Device
from forerun.memory.card import CardReplay, replay_on_card
from forerun.memory.overhead import outside_bytes
from forerun.memory.replay import category
from forerun.records import (
    Forecast,
    MemoryForecast,
    ParameterCounts,
    Record,
    RunForecast,
    RunPhases,
    StepForecast,
    StepPhases,
)
from forerun.trace import Trace
from forerun.virtual.cuda.launchers import Program
from forerun.virtual.cuda.run import ProgramRun, run_program

HOUR = 3600.0
MOST_ASSUMED = 50
"""Assumptions that are listed; the rest are counted."""


class ScriptReport(Record):
    """How the program ran on the virtual GPU."""

    command: str
    exit_code: int
    steps_seen: int
    warm_from_step: int | None
    """Number of the first warm step, from 1; null where no step was warm."""
    wall_seconds: float
    host_peak_bytes: int
    length_known_from: str | None
    """Who says how many steps the whole run has; null where nobody does."""


class AssumedValue(Record):
    """A value of the device that nobody can know, and what the program was told."""

    line: str
    what: str
    value: str


class OutOfMemoryPoint(Record):
    """Where the program ran out of the card's memory."""

    line: str
    tried_bytes: int
    allocated_bytes: int
    alive: list[dict[str, Any]] = []


class ProgramForecast(Forecast):
    """A forecast with what was seen of the program."""

    script: ScriptReport
    assumed: list[AssumedValue] = []
    findings: list[ProgramFinding] = []
    out_of_memory: OutOfMemoryPoint | None = None


def forecast_program(
    program: Program,
    command: Sequence[str],
    devices: Sequence[Device],
    *,
    most_steps: int | None = None,
    total_steps: int | None = None,
    price_per_hour: float | None = None,
    keep_files: bool = False,
) -> tuple[list[ProgramForecast], ProgramRun]:
    """Run `program` on the first of `devices` and forecast it on each, from what it did on the first.

    `total_steps` is the length of the whole run where the program does not say it.
    """
    card = CardMemory(devices[0])
    run = run_program(
        program, devices[0], card, most_steps=most_steps, keep_files=keep_files, clock=clock_of(devices[0])
    )
    forecasts = [_forecast(run, device, command, program.world_size, total_steps, price_per_hour) for device in devices]
    return forecasts, run


def _forecast(
    run: ProgramRun, device: Device, command: Sequence[str], world_size: int, total_steps: int | None,
    price_per_hour: float | None,
) -> ProgramForecast:  # fmt: skip
    trace, watcher = run.session.recorder.trace, run.watcher
    trace.world_size = world_size
    memory = replay_on_card(dataclasses.replace(trace, warm_from=0), device, passes=1)
    costs = PriorCosts(device, tf32=trace.tf32, world_size=world_size)
    steps = [replay_clock(part, costs) for part in _warm_steps(trace, watcher)]
    length = total_steps or (watcher.program_length.steps if watcher.program_length else None)
    source = "--total-steps" if total_steps else watcher.program_length.source if watcher.program_length else None
    text = " ".join(command)
    return ProgramForecast(
        settings_hash=hashlib.sha256(text.encode()).hexdigest()[:16],
        gpu=device.name,
        world_size=world_size,
        fits=memory.fits and run.out_of_memory is None,
        parameters=ParameterCounts(
            total=trace.total_parameters, trainable=trace.trainable_parameters
        ),
        memory=_memory(memory, device, world_size),
        step=_step(steps, watcher.samples_per_step, watcher.tokens_per_step, costs, trace, device),
        run=_run(steps, length, costs, device, world_size, price_per_hour, run.saved_bytes),
        warnings=_warnings(run, costs, length, bool(steps)),
        not_modelled=_not_modelled(run, world_size),
        script=ScriptReport(
            command=text,
            exit_code=run.exit_code,
            steps_seen=len(watcher.spans),
            warm_from_step=watcher.warm_from + 1 if watcher.spans else None,
            wall_seconds=run.wall_seconds,
            host_peak_bytes=run.host_peak_bytes,
            length_known_from=source,
        ),
        assumed=[
            AssumedValue(line=each.line, what=each.what, value=each.value[:80])
            for each in run.assumptions[:MOST_ASSUMED]
        ],
        findings=find_faults(trace, watcher, device),
        out_of_memory=None if run.out_of_memory is None else OutOfMemoryPoint(
            line=run.out_of_memory.line,
            tried_bytes=run.out_of_memory.tried_bytes,
            allocated_bytes=run.out_of_memory.allocated_bytes,
            alive=_alive(run),
        ),
    )  # fmt: skip


def _warm_steps(trace: Trace, watcher: Any) -> list[Trace]:
    """The warm steps, each as a trace of its own."""
    spans = watcher.spans[watcher.warm_from :] if watcher.spans else []
    return [dataclasses.replace(trace, events=trace.events[span.begin : span.end], warm_from=0) for span in spans]


def _memory(card: CardReplay, device: Device, world_size: int) -> MemoryForecast:
    return MemoryForecast(
        peak_allocated_bytes=card.memory.peak_allocated_bytes,
        peak_reserved_bytes=card.memory.peak_reserved_bytes,
        device_bytes=card.device_bytes,
        context_bytes=int(outside_bytes(device, world_size).expected),
        capacity_bytes=device.memory_bytes,
        breakdown=card.memory.breakdown,
    )


def _step(
    steps: list[StepTime], samples: float, tokens: float, costs: PriorCosts, trace: Trace, device: Device
) -> StepForecast:
    if not steps:
        return StepForecast(
            seconds=spread(0.0, 1.0, 1.0), phases=StepPhases(), model_flops=0, hardware_flops=0, mfu=0,
            tokens_per_second=0, samples_per_second=0,
        )  # fmt: skip
    seconds = statistics.fmean(step.seconds for step in steps)
    model_flops = statistics.fmean(step.model_flops for step in steps)
    phases = {name: statistics.fmean(getattr(step.phases, name) for step in steps) for name in StepPhases.model_fields}
    dtypes = [spec.dtype for call in trace.calls if call.flops for spec in call.inputs if "float" in spec.dtype]
    dtype = max(set(dtypes), key=dtypes.count) if dtypes else "float32"
    dtype = "tfloat32" if dtype == "float32" and trace.tf32 else dtype
    return StepForecast(
        seconds=spread(seconds, *shares(costs.evidence)),
        phases=StepPhases(**phases),
        model_flops=model_flops,
        hardware_flops=statistics.fmean(step.hardware_flops for step in steps),
        mfu=model_flops / (seconds * device.peak(dtype)),
        tokens_per_second=tokens / seconds,
        samples_per_second=samples / seconds,
    )


def _run(
    steps: list[StepTime], length: int | None, costs: PriorCosts, device: Device, world_size: int,
    price_per_hour: float | None, saved_bytes: int,
) -> RunForecast:  # fmt: skip
    total = length or len(steps)
    seconds = total * statistics.fmean(step.seconds for step in steps) if steps else 0.0
    price = device.price_per_hour if price_per_hour is None else price_per_hour
    return RunForecast(
        steps_per_epoch=total,
        total_steps=total,
        checkpoints_written=int(saved_bytes > 0),
        checkpoint_bytes=saved_bytes,
        seconds=spread(seconds, *shares(costs.evidence)),
        phases=RunPhases(training_seconds=seconds),
        cost=None if price is None else price * seconds / HOUR * world_size,
    )


def _warnings(run: ProgramRun, costs: PriorCosts, length: int | None, has_steps: bool) -> list[str]:
    warnings = [f"Time: {costs.description}."]
    if not has_steps:
        warnings.append("No optimizer step was seen, so no time is forecast: the program ended before its first one.")
    elif length is None:
        warnings.append(
            "The length of the whole run is not known, so run and cost are of the steps seen. Give --total-steps."
        )
    if run.session.compiled_eagerly:
        names = ", ".join(dict.fromkeys(run.session.compiled_eagerly))
        warnings.append(f"torch.compile of {names} is forecast as eager code: memory and time of compiled code differ.")
    if run.assumptions:
        first = run.assumptions[0]
        warnings.append(
            f"{len(run.assumptions)} lines read device values that nobody can know; {first.line}: {first.what}, "
            f"answered with {first.value[:40]}."
        )
    return warnings


def _not_modelled(run: ProgramRun, world_size: int) -> list[str]:
    listed = ["time that the GPU waits for data", "evaluation, generation and checkpoints between steps"]
    if world_size > 1:
        listed.append("time of communication between machines")
    return listed


def _alive(run: ProgramRun) -> list[dict[str, Any]]:
    """The largest storages that were alive when an allocation failed, with their category."""
    storages = run.session.recorder.trace.storages
    alive = [storages[index] for index in run.session.card.largest_at_failure if 0 <= index < len(storages)]
    return [{"bytes": storage.bytes, "category": category(storage).value} for storage in alive]
