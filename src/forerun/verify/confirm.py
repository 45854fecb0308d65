"""Which of a plan's best candidates is fastest in reality? A few real steps of each, on the device here.

Every candidate is built with random weights and runs steps of shapes spread over its batch plan, in two rounds of which
the second goes backwards, so that a machine that slows down treats all alike. One that runs out of memory is out. The
plan's own choice is kept unless another is faster by more than `NOISE`.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from forerun.data.plan import BatchPlan, BatchShape
from forerun.errors import ForerunError, InvalidSettings
from forerun.forecasting.request import ForecastRequest
from forerun.hardware.catalogue import Device
from forerun.hardware.host_memory import freed_memory_held
from forerun.plan.candidates import Ask
from forerun.plan.outcome import Confirmation, FrontPoint, Reason, RunPlan, SettingChange
from forerun.plan.space import differences
from forerun.records import Forecast
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings
from forerun.step.build import build_step
from forerun.step.training_step import StepObserver, TrainingStep
from forerun.step.workload import Batch
from forerun.train.recovery import is_out_of_memory

WARM_UP_STEPS, LEAST_STEPS, ROUND_SECONDS = 2, 3, 2.0
"""Warm-up runs, and least timed steps and seconds, in each round of each candidate."""
NOISE = 0.03
"""Share by which another candidate must be faster than the plan's choice."""
SHAPES = 4
"""Lengths of the batch plan that are run, at the middles of as many equal parts of its micro-batches."""


def confirm(
    plan: RunPlan,
    settings: Settings,
    device: Device,
    ask: Ask,
    forecast: Callable[[Settings], Forecast],
    on_progress: Callable[[str], None] = lambda what: None,
) -> RunPlan:
    """The plan with its contenders measured on `device`, and the fastest of them chosen.

    Raises:
        InvalidSettings: the plan is not for the device here, or is for several.
    """
    if plan.gpu != device.name:
        raise InvalidSettings(
            f"--confirm runs on the device here, {device.name}; found a plan for {plan.gpu}. "
            f"Plan with --gpu {device.name}."
        )
    candidates = [settings_from(content) for content in plan.contenders]
    if any(candidate.parallel.world_size > 1 for candidate in candidates):
        raise InvalidSettings("--confirm runs on one device; found parallel.world_size above 1. Leave --confirm out.")
    measured: list[list[float]] = [[] for _ in candidates]
    failed: dict[int, str] = {}
    for number in (*range(len(candidates)), *reversed(range(len(candidates)))):
        if number in failed:
            continue
        on_progress(f"real steps of candidate {number + 1} of {len(candidates)}")
        try:
            measured[number].append(step_seconds(ask(candidates[number], device), device))
        except ForerunError as error:
            failed[number] = str(error)
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            if not is_out_of_memory(error):
                raise
            failed[number] = "ran out of memory"
    lines = [
        Confirmation(
            changes=differences(settings, candidate),
            forecast_step_seconds=forecast(candidate).step.seconds.expected,
            measured_step_seconds=min(measured[n]) if n not in failed else None,
            failed=failed.get(n, ""),
        )
        for n, candidate in enumerate(candidates)
    ]
    return _with_fastest(plan, settings, candidates, lines, forecast)


def _with_fastest(
    plan: RunPlan, settings: Settings, candidates: Sequence[Settings], lines: list[Confirmation],
    forecast: Callable[[Settings], Forecast],
) -> RunPlan:  # fmt: skip
    """The plan with the fastest of its contenders; unchanged where its own choice is as fast, or nothing ran."""
    seconds_of = {
        n: line.measured_step_seconds for n, line in enumerate(lines) if line.measured_step_seconds is not None
    }
    if not seconds_of:
        return plan.model_copy(update={"confirmed": lines})
    best = min(seconds_of, key=lambda n: seconds_of[n])
    if 0 in seconds_of and seconds_of[0] <= seconds_of[best] * (1 + NOISE):
        best = 0
    lines[best] = lines[best].model_copy(update={"is_chosen": True})
    if best == 0:
        return plan.model_copy(update={"confirmed": lines})
    changes = differences(settings, candidates[best])
    reason = Reason(about="confirmed", said=_why(lines[0], lines[best], changes))
    best_forecast = forecast(candidates[best])
    return plan.model_copy(update={
        "confirmed": lines, "settings": candidates[best].model_dump(mode="json"), "changes": changes,
        "forecast": best_forecast, "front": _front(plan, changes, candidates[best], best_forecast),
        "reasons": [*plan.reasons, reason],
    })  # fmt: skip


def _front(plan: RunPlan, changes: list[SettingChange], candidate: Settings, forecast: Forecast) -> list[FrontPoint]:
    """The front with the chosen candidate marked, which by forecast may have been behind it."""
    others = [p.model_copy(update={"is_chosen": False}) for p in plan.front if p.changes != changes]
    point = FrontPoint(
        gpu=forecast.gpu, changes=changes, micro_batch_size=candidate.batch.micro_batch_size,
        step_seconds=forecast.step.seconds.expected, run_seconds=forecast.run.seconds.expected,
        device_bytes=forecast.memory.device_bytes.conservative, cost=forecast.run.cost, is_chosen=True,
    )  # fmt: skip
    return sorted([*others, point], key=lambda p: (p.run_seconds, p.device_bytes))


def _why(first: Confirmation, best: Confirmation, changes: Sequence[SettingChange]) -> str:
    what = ", ".join(change.description for change in changes) or "the given settings"
    if first.measured_step_seconds is None:
        return f"{what}: the forecast's first choice {first.failed}"
    faster = 1 - (best.measured_step_seconds or 0.0) / first.measured_step_seconds
    return f"{what}: measured {faster:.0%} faster than the forecast's first choice"


def step_seconds(request: ForecastRequest, device: Device) -> float:
    """Mean seconds of a warm optimizer step over shapes of the batch plan, weights random.

    Raises:
        ForerunError: the step cannot be built.
    """
    settings = request.settings
    torch.manual_seed(settings.seed)
    step = build_step(settings, request.workload, device.kind, pretrained=False)
    per_step = settings.batch.gradient_accumulation_steps
    groups = [[_batch(request, shape, device)] * per_step for shape in spread_shapes(request.plan)]
    memory_guard = freed_memory_held() if device.kind == "cpu" else contextlib.nullcontext()
    try:
        with memory_guard:
            return _mean_step_seconds(step, groups)
    finally:
        # The allocator frees only blocks that no tensor uses, so the model and its batches go first.
        del step, groups
        if device.kind == "cuda":
            torch.cuda.empty_cache()


def _mean_step_seconds(step: TrainingStep, groups: Sequence[Sequence[Batch]]) -> float:
    for _ in range(WARM_UP_STEPS):
        for batches in groups:
            step.run(batches, StepObserver())
    seconds: list[list[float]] = [[] for _ in groups]
    while len(seconds[0]) < LEAST_STEPS or sum(map(sum, seconds)) < ROUND_SECONDS:
        for times, batches in zip(seconds, groups, strict=True):
            start = time.perf_counter()
            float(step.run(batches, StepObserver()).loss)  # reading it waits for the device
            times.append(time.perf_counter() - start)
    return statistics.fmean(statistics.median(times) for times in seconds)


def spread_shapes(plan: BatchPlan) -> list[BatchShape]:
    """Shapes at the middles of `SHAPES` equal parts of the epoch's micro-batches, by tokens; one if all are alike."""
    ordered = sorted(plan.shapes, key=lambda pair: (pair[0].size * pair[0].length, pair[0]))
    selection = []
    for part in range(SHAPES):
        place = (part + 0.5) / SHAPES * plan.micro_batches
        for shape, number in ordered:
            place -= number
            if place < 0:
                selection.append(shape)
                break
    return selection[:1] if len(set(selection)) == 1 else selection


def _batch(request: ForecastRequest, shape: BatchShape, device: Device) -> Batch:
    batch = request.workload.example_batch(request.settings, shape.size, shape.length)
    return {name: tensor.to(device.kind) for name, tensor in batch.items()}
