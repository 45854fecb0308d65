"""From a request to a `Forecast`: step model → memory, step, run, cost, with what is not modelled said.

Three scenarios of time: `ranges.py`.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from forerun.clock.host_speed import host_shares
from forerun.experience import Correction
from forerun.forecasting.allocator_warnings import UNUSED, allocator_warnings, unused_bytes
from forerun.forecasting.card_warnings import card_warnings
from forerun.forecasting.engine_warnings import engine_warnings
from forerun.forecasting.expert_warnings import expert_warnings
from forerun.forecasting.float8_warnings import float8_warnings
from forerun.forecasting.host_warnings import host_warnings
from forerun.forecasting.kernel_warnings import kernel_warnings
from forerun.forecasting.made_with import made_with
from forerun.forecasting.quantization_warnings import quantization_warnings
from forerun.forecasting.ranges import SETTINGS, group_of, run_range, step_range
from forerun.forecasting.rank_warnings import rank_warnings
from forerun.forecasting.reliability import reliability_warnings, with_reliability
from forerun.forecasting.request import ForecastRequest
from forerun.forecasting.run_warnings import checkpoint_warning, length_warning, startup_warning
from forerun.forecasting.startup import stated_startup_seconds
from forerun.forecasting.step_model import StepModel, model_steps
from forerun.forecasting.update_warnings import update_warnings
from forerun.forecasting.wide_products import adapter_warnings
from forerun.hardware.list_prices import price_text
from forerun.memory.overhead import outside_bytes, uses_cudnn
from forerun.memory.resident import resident_bytes
from forerun.records import (
    Forecast,
    ForecastDetail,
    MemoryBreakdown,
    MemoryForecast,
    ParameterCounts,
    Range,
    RunForecast,
    RunPhases,
    StepForecast,
    StepPhases,
    TimelinePoint,
)
from forerun.settings.media import DENOISING, MEDIA
from forerun.settings.schema import Settings
from forerun.step.library_versions import version_warnings
from forerun.trace import ROUTING
from forerun.units import HOUR, format_bytes, format_percent, format_seconds

TIMELINE_POINTS = 240
NOT_MODELLED = {
    "cuda": [
        "workspaces of cuDNN and of sorts, reductions' scratch",
        "power limits of long runs, kernels that differ from one library version to the next",
        "copying checkpoints into host memory",
    ],
    "cpu": ["memory that the C library keeps after it is freed", "other processes on the machine"],
}


def make_forecast(request: ForecastRequest, steps: StepModel | None = None) -> Forecast:
    """The forecast that answers `request`; `steps` may be those of another request with the same step."""
    model = model_steps(request) if steps is None else replace(steps, request=request)
    memory = _memory(request, model)
    step = _step(request, model)
    run, factors = _run(request, model, step.seconds)
    corrected_by = {**model.corrected_by, **factors} if request.correction is not None else {}
    return Forecast(
        settings_hash=request.settings.hash,
        gpu=request.device.name,
        world_size=request.settings.parallel.world_size,
        fits=memory.device_bytes.conservative <= memory.capacity_bytes,
        parameters=ParameterCounts(
            total=model.longest.trace.total_parameters, trainable=model.longest.trace.trainable_parameters
        ),
        memory=memory,
        step=step,
        run=run,
        warnings=[
            *_warnings(request, model),
            *_run_warnings(request, model, run, factors),
            *reliability_warnings(request.settings, request.device, run),
        ],
        not_modelled=_not_modelled(request, model),
        kinds=model.kinds,
        detail=_detail(request, model, corrected_by),
    )


def _memory(request: ForecastRequest, model: StepModel) -> MemoryForecast:
    device, replay = request.device, model.memory
    if model.card is None:
        import psutil

        context = psutil.Process().memory_info().rss
        lengths = len({shape.length for shape, number in request.plan.shapes if number})
        band = resident_bytes(context, replay.peak_reserved_bytes, lengths)
    else:
        trace, ranks = model.longest.trace, request.settings.parallel.world_size
        context = int(outside_bytes(device, ranks, with_cudnn=uses_cudnn(trace)).expected)
        band = model.card.device_bytes
    peaks = {"training": replay.breakdown, **model.evaluation_peaks}
    highest = max(peaks.values(), key=lambda breakdown: breakdown.total_bytes)
    more = highest.total_bytes - replay.breakdown.total_bytes
    return MemoryForecast(
        peak_allocated_bytes=highest.total_bytes,
        peak_reserved_bytes=replay.peak_reserved_bytes + more,
        device_bytes=Range(**{name: value + more for name, value in band.model_dump().items()}),
        context_bytes=context,
        capacity_bytes=device.memory_bytes,
        breakdown=highest,
        phase_peaks={name: breakdown.total_bytes for name, breakdown in peaks.items()},
    )


def _step(request: ForecastRequest, model: StepModel) -> StepForecast:
    plan = request.plan
    seconds = model.mean_step_seconds()
    model_flops = model.mean_flops("model_flops")
    return StepForecast(
        seconds=_step_range(request, model),
        phases=StepPhases(**model.mean_phases()),
        model_flops=model_flops,
        hardware_flops=model.mean_flops("hardware_flops"),
        mfu=model_flops / (seconds * model.peak_flops_per_second),
        tokens_per_second=plan.tokens / plan.steps / seconds,
        samples_per_second=plan.samples / plan.steps / seconds,
    )


def _step_range(request: ForecastRequest, model: StepModel) -> Range:
    hosts = host_shares([(step.trace, step.time) for step in model.traced if not model.kinds], model.costs)
    group = group_of(model.longest.trace, model.costs, SETTINGS)
    return step_range(model.mean_step_seconds(), group, hosts, request.correction)


def _run(request: ForecastRequest, model: StepModel, step: Range) -> tuple[RunForecast, dict[str, float]]:
    """The run, and the factors of past runs on its phases; `step` is the range of its mean step."""
    settings, plan, times = request.settings, request.plan, request.times
    total = math.ceil(settings.schedule.epochs * plan.steps)
    if settings.schedule.max_steps is not None:
        total = min(total, settings.schedule.max_steps)
    frozen = min(total, math.ceil(settings.schedule.frozen_encoder_epochs * plan.steps))
    checkpoint_count = math.ceil(total / settings.checkpoints.every_steps)
    checkpoint_bytes = model.longest.trace.checkpoint_bytes
    evaluations = math.floor(total / plan.steps / settings.evaluation.every_epochs + 1e-9)
    evaluation = evaluations * _evaluation_seconds(request, model) + _final_evaluation_seconds(request, model)
    training = frozen * model.mean_step_seconds(frozen=True) + (total - frozen) * model.mean_step_seconds()
    write_seconds = checkpoint_bytes / model.disk_bytes_per_second
    startup = times.startup_seconds
    if startup is None:
        parameters = model.longest.trace.total_parameters
        shapes = max(1, min(len(plan.shapes), total))
        startup = stated_startup_seconds(parameters, request.device.kind, model.disk_bytes_per_second, shapes)
    modelled = {
        "startup": startup,
        "compile": model.compile_seconds,
        "evaluation": evaluation,
        "checkpoint": _checkpoint_seconds(
            settings, request.device.kind, checkpoint_count, write_seconds, training / max(1, total)
        ),
    }
    correction = request.correction or Correction()
    factors = {name: correction.factor(name, seconds) for name, seconds in modelled.items()}
    # start-up work that happens once was timed here: the factor of past runs applies to the rest only
    startup = modelled["startup"] * factors["startup"] + times.once_seconds
    modelled["startup"] += times.once_seconds
    if times.once_seconds:
        factors["startup"] = startup / modelled["startup"]
    phases = RunPhases(
        training_seconds=training,
        **{f"{name}_seconds": seconds * factors[name] for name, seconds in modelled.items()},
    )
    expected = sum(phases.model_dump().values())
    price = request.device.price_per_hour if request.price_per_hour is None else request.price_per_hour
    forecast = RunForecast(
        steps_per_epoch=plan.steps,
        total_steps=total,
        checkpoints_written=checkpoint_count,
        checkpoint_bytes=checkpoint_bytes,
        seconds=run_range(phases, group_of(model.longest.trace, model.costs, SETTINGS), request.correction, step),
        phases=phases,
        cost=None if price is None else price * expected / HOUR * settings.parallel.world_size,
    )
    return with_reliability(settings, request.device, forecast, write_seconds, price), factors


def _checkpoint_seconds(
    settings: Settings, kind: str, count: int, write_seconds: float, step_seconds: float
) -> float:  # fmt: skip
    """Seconds that training waits for `count` checkpoints, each `write_seconds` of disk; a mean step is `step_seconds`.

    In the background only the last one is waited for, and what another takes longer than the steps until the next.
    """
    checkpoints = settings.checkpoints
    in_background = checkpoints.background == "always" or (checkpoints.background == "auto" and kind == "cuda")
    if not in_background or (checkpoints.sharded and settings.parallel.kind == "fsdp"):
        return count * write_seconds
    late_seconds = max(0.0, write_seconds - checkpoints.every_steps * step_seconds)
    return min(1, count) * write_seconds + max(0, count - 1) * late_seconds


def _evaluation_seconds(request: ForecastRequest, model: StepModel) -> float:
    """Seconds of one evaluation: a forward pass per sample, and generating for each batch."""
    samples, tokens = request.times.evaluation_examples, request.times.generated.watched_tokens
    examples = request.settings.evaluation.examples if samples is None else samples
    return examples * model.scoring_seconds_per_sample() + _generation_seconds(request, model, examples, tokens)


def _final_evaluation_seconds(request: ForecastRequest, model: StepModel) -> float:
    """Seconds of what is scored and generated once, after training."""
    times = request.times
    scoring = times.final_evaluation_examples * model.scoring_seconds_per_sample()
    return scoring + sum(_generation_seconds(request, model, *text) for text in times.generated.final)


def _generation_seconds(request: ForecastRequest, model: StepModel, prompts: int, tokens: float | None) -> float:
    """Seconds to generate `tokens` (None: `evaluation.new_tokens`) for each of `prompts`, in batches as in training.

    Where generation is not traced (encoder-decoders), all weights are read once per token of a batch.
    """
    tokens = request.settings.evaluation.new_tokens if tokens is None else tokens
    batches = math.ceil(prompts / request.settings.batch.micro_batch_size)
    if not batches or not tokens:
        return 0.0
    if model.generation is not None:
        filling, token = model.generation
        return batches * (filling + tokens * token)
    bandwidth = request.device.bandwidth_bytes_per_second or model.disk_bytes_per_second
    per_token = model.memory.breakdown.parameter_bytes / bandwidth + model.longest.time.phases.host_seconds / 3
    return batches * tokens * per_token


def _warnings(request: ForecastRequest, model: StepModel) -> list[str]:
    warnings = [f"Time: {model.costs.description}."]
    if request.correction is not None and request.correction.terms:
        step = format_percent(model.corrected_by["step"] - 1, signed=True)
        warnings.append(f"Corrected by {request.correction.said}: steps {step}.")
    if request.device.kind == "cuda":
        warnings.append("Device memory outside the allocator is taken from the catalogue, not probed on this machine.")
    warnings += [*card_warnings(request.device), *allocator_warnings(request.settings.allocator.conf, request.device)]
    training, reserved = model.memory.peak_allocated_bytes, model.memory.peak_reserved_bytes
    if unused := unused_bytes(training, reserved, request.device, request.settings.allocator.conf):
        warnings.append(UNUSED.format(unused=format_bytes(unused), reserved=format_bytes(reserved)))
    for name, breakdown in model.evaluation_peaks.items():
        if breakdown.total_bytes > training:
            warnings.append(f"Memory peaks in {name}, {breakdown.total_bytes / training - 1:.0%} above training.")
    warnings.extend(f"Assumed: {assumption}" for assumption in request.plan.assumptions)
    if request.device.kind == "cuda" and model.compile_seconds:
        duration = format_seconds(model.compile_seconds)
        figures = "by its kernels, at the pace of PyTorch's published figures"
        warnings.append(f"Compiling is taken as {duration}: {figures}.")
    warnings.extend(note for note in (model.longest.trace.documents, model.disk_note) if note)
    warnings.extend(length_warning(model.longest.trace))
    warnings.extend(kernel_warnings(model.longest.trace, model.costs))
    warnings.extend(rank_warnings(model.longest.trace, model.costs))
    if request.device.kind == "cuda":
        phases, seconds = model.longest.time.phases, model.longest.time.seconds
        warnings.extend(update_warnings(request.settings, phases.optimizer_seconds, seconds))
    warnings.extend(host_warnings(model.longest.trace, model.costs))
    warnings.extend(quantization_warnings(request.settings, model.longest.trace, model.costs))
    warnings.extend(adapter_warnings(request.settings, model.longest.trace, model.costs))
    warnings.extend(float8_warnings(request.settings))
    warnings.extend(engine_warnings(request.settings))
    warnings.extend(expert_warnings(model.longest.trace, model.costs))
    if request.settings.versions:
        warnings.extend(version_warnings(request.settings))
    host = model.longest.time.phases.host_seconds / max(model.longest.time.seconds, 1e-12)
    if request.device.kind == "cuda" and host > 0.3:  # a third of the step: worth saying
        warnings.append(f"Host-bound: {host:.0%} of the step the GPU waits for launches; try a larger micro-batch.")
    return warnings


def _run_warnings(
    request: ForecastRequest, model: StepModel, run: RunForecast, factors: Mapping[str, float]
) -> list[str]:
    is_stated = request.times.startup_seconds is None and factors["startup"] == 1
    write_seconds = run.checkpoint_bytes / model.disk_bytes_per_second
    return [*startup_warning(run, is_stated=is_stated), *checkpoint_warning(run, write_seconds)]


def _not_modelled(request: ForecastRequest, model: StepModel) -> list[str]:
    gaps = list(NOT_MODELLED[request.device.kind])
    if request.settings.workload in MEDIA and request.settings.workload not in DENOISING:
        gaps.append("reading and decoding images or sound on the host, for which a run waits where workers are too few")
    if model.longest.trace.unseen_parameters:
        gaps.append(
            f"images and sound: a step of tokens reads none, so the model's parts for them "
            f"({model.longest.trace.unseen_parameters:,} parameters) lie in memory without work, gradients or "
            f"optimizer states, as where they are frozen; batch.sequence_length counts the tokens of images too"
        )
    if not getattr(model.costs, "knows_ranks", request.settings.parallel.world_size == 1):
        gaps.append("time of communication between ranks: the links of such a GPU are not known")
    if request.settings.model.attention.startswith("flash_attention_") and request.settings.batch.padding != "packed":
        gaps.append("padding, which flash attention leaves out in a run: every token is counted here")
    reads = [text for text in model.longest.trace.assumed_values if not text.startswith(ROUTING)]
    if reads:
        gaps.append(f"{len(reads)} reads of tensor values, answered with 0: {reads[0]} …")
    missing = getattr(model.costs, "missing", set())
    if missing:
        gaps.append(f"operators not timed alone, taken by bytes and FLOP: {', '.join(sorted(missing))}")
    return gaps


def _detail(request: ForecastRequest, model: StepModel, corrected_by: dict[str, float]) -> ForecastDetail:
    return ForecastDetail(
        timeline=_timeline(model),
        operators=list(model.longest.time.operators[:20]),
        rates=model.costs.description,
        traced_lengths=[t.shape.length for t in model.traced],
        padded_tokens_per_step=request.plan.padded_tokens / request.plan.steps,
        device_name=request.device.name,
        price=price_text(request.device, request.price_per_hour),
        versions=made_with(),
        corrected_by=corrected_by,
        final_evaluation_seconds=_final_evaluation_seconds(request, model) * corrected_by.get("evaluation", 1.0),
    )


def _timeline(model: StepModel) -> list[TimelinePoint]:
    """Memory over the longest step, thinned out but with its peak kept."""
    curve, ends = model.memory.curve, model.longest.time.ends
    stride = max(1, len(curve) // TIMELINE_POINTS)
    peak = max(range(len(curve)), key=lambda i: curve[i].total_bytes)
    return [
        TimelinePoint(seconds=ends[i], phase=curve[i].phase.value, bytes=MemoryBreakdown(**curve[i].live.model_dump()))
        for i in range(len(curve))
        if i % stride == 0 or i in (peak, len(curve) - 1)
    ]
