"""Trace one warm optimizer step of a workload on the virtual twin of a device.

The model is built on `meta`, given fake storage, and its optimizer state created by one update on empty gradients
(phase PREPARE). Then the shared training step runs once. With gradient accumulation two micro-steps are traced: the
first, which creates the gradients, and one that adds to them and stands for all later ones; a third where the last one
alone sends them.
"""

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from forerun.data.plan import BatchShape
from forerun.errors import UntraceableOp
from forerun.hardware.catalogue import Device
from forerun.models.build import has_rotary_positions, maximum_length
from forerun.models.guard import guarded
from forerun.models.outside_settings import remedy_for_trace
from forerun.models.token_loops import is_token_by_token
from forerun.settings.micro_batches import with_micro_batches
from forerun.settings.schema import Settings
from forerun.step.build import bind_step, prepare_model
from forerun.step.eight_bit import paged_bytes
from forerun.step.offload import record_update
from forerun.step.optimizer_in_backward import OptimizerInBackward
from forerun.step.parallel import holding_gradients, mesh_of_ranks, replica, unsent_gradients, unwrapped
from forerun.step.pipeline_stages import first_blocks, place_of_blocks
from forerun.step.quantization import narrow_bytes, parameter_count, quantization_scales, unpacked_expert_bytes
from forerun.step.sharding import shard
from forerun.step.training_step import StepObserver, TrainingStep
from forerun.step.unseen_parts import unseen_parameters, with_work
from forerun.step.workload import Workload
from forerun.step.zero import DeepSpeedOptimizer
from forerun.trace import Category, Phase, Trace
from forerun.virtual.compiled import compiling_afresh, virtual_backend
from forerun.virtual.looped_experts import layers_as_run
from forerun.virtual.megatron import as_megatron
from forerun.virtual.placement import place
from forerun.virtual.process_group import (
    masks_fill,
    one_of,
    own_streams,
    record_reductions,
    recording_waits,
    steady_buckets,
    without_shape_questions,
)
from forerun.virtual.recorder import Recorder
from forerun.virtual.repeated_passes import FirstPasses, RepeatedPasses
from forerun.virtual.session import VirtualSession
from forerun.virtual.windows import of_stage, window


def trace_step(
    settings: Settings,
    workload: Workload,
    device: Device,
    shape: BatchShape,
    *,
    frozen_encoder: bool = False,
    keep_lines: bool = False,
    stage: int = 0,
) -> Trace:
    """The trace of one warm step with micro-batches of `shape` on `device`; `keep_lines` notes who calls operators.

    Of several ranks it is the first one; of a pipeline, the first of `stage`, with all micro-batches.

    Raises:
        UntraceableOp: an operator of the model cannot run on the virtual device.
        InvalidSettings, NotSupported, UnknownModel: the step cannot be built.
    """
    how = StepToTrace(settings, workload, device, shape, frozen_encoder, keep_lines)
    with bound_step(how, stage) as (step, session):
        return _record(step, session, shape)


def trace_stages(
    settings: Settings, workload: Workload, device: Device, shape: BatchShape, stages: Sequence[int],
    micro_batches: Sequence[int] = (),
) -> list[Trace]:  # fmt: skip
    """The traces of some stages of a pipeline, for one number of `micro_batches` after the other; else for that of
    `settings`.

    They differ in which of their micro-batches is under way when, so that one model runs the schedules of all; where
    there are several stages their blocks must be alike. Micro-batches that do the same are played from the record of
    two that were run, if that is possible.

    Raises:
        UntraceableOp, InvalidSettings, NotSupported, UnknownModel: as `trace_step`.
    """
    counts = micro_batches or [settings.batch.gradient_accumulation_steps]
    first = with_micro_batches(settings, counts[0])
    how = StepToTrace(first, workload, device, shape)
    passes: list[RepeatedPasses] = []
    try:
        with bound_step(how, stages[0]) as (step, session):
            if settings.parallel.schedule != "zero-bubble":
                passes.append(RepeatedPasses(session.recorder))
                assert step.pipeline is not None
                step.pipeline.passes = passes[0]
            return _record_stages(step, session, shape, stages, counts)
    except UntraceableOp:
        if not passes or not passes[0].is_refused:
            raise
        each = [with_micro_batches(settings, count) for count in counts]
        return [trace_step(one, workload, device, shape, stage=stage) for one in each for stage in stages]


@dataclass(frozen=True)
class StepToTrace:
    """What is traced."""

    settings: Settings
    workload: Workload
    device: Device
    shape: BatchShape
    frozen_encoder: bool = False
    keep_lines: bool = False


@contextlib.contextmanager
def bound_step(how: StepToTrace, stage: int) -> Iterator[tuple[TrainingStep, VirtualSession]]:
    """The step of one rank on the virtual device, before anything of it was run."""
    settings, workload, device = how.settings, how.workload, how.device
    with torch.device("meta"):
        model = prepare_model(settings, workload, pretrained=False)
    session = VirtualSession(device, settings.model.attention, is_compiled=settings.compile != "none")
    session.recorder.keeps_lines = how.keep_lines
    parallel = settings.parallel
    with contextlib.ExitStack() as stack:
        stack.enter_context(tracing_guard(settings, device))
        if not parallel.is_alone:
            rank = stage * (parallel.world_size // parallel.pipeline)
            stack.enter_context(one_of(parallel.world_size, settings.cluster.gpus_per_node, rank))
        if settings.compile != "none":
            stack.enter_context(compiling_afresh())
        mesh = mesh_of_ranks(settings, session.torch_device.type)
        stack.enter_context(session)
        if mesh is not None:
            stack.enter_context(without_shape_questions(session.recorder))
            stack.enter_context(own_streams())
            stack.enter_context(masks_fill())
            with _disable_current_modes():  # meshes of ranks are real tensors, and parameters are on `meta`
                shard(model, settings, mesh)
        if parallel.pipeline > 1 or parallel.deepspeed_stage == 3:
            stack.enter_context(recording_waits(session.recorder))
        with session.recorder.muted() if parallel.deepspeed_stage == 3 else contextlib.nullcontext():
            # which ZeRO-3 splits as they are made (`zero.Init`)
            place(model, session.torch_device, _place_of_shards(settings))
        stack.enter_context(layers_as_run(model, settings, device, session.recorder))
        session.name_modules(model)
        casts = stack.enter_context(as_megatron(settings, workload, model, session.recorder))
        compiler = virtual_backend(session.recorder, settings.compile, casts=casts)
        with steady_buckets():
            step = bind_step(
                settings, workload, model, session.torch_device.type, compiler, device.compute_capability, mesh
            )  # fmt: skip
        if _place_of_shards(settings) is not None:
            trained = [p for p in model.parameters() if p.requires_grad]
            step.optimizer.register_step_post_hook(lambda *_: record_update(trained, session.torch_device.type))
        if casts is not None:
            step.optimizer.register_step_post_hook(lambda *_: casts.begin_step())
        if (replicated := replica(step.called)) is not None:
            record_reductions(replicated, session.recorder)
        step.freeze_encoder(how.frozen_encoder)
        yield step, session


def _place_of_shards(settings: Settings) -> torch.device | None:
    parallel = settings.parallel
    return torch.device("cpu") if parallel.kind == "fsdp" and parallel.offload == "parameters" else None


def tracing_guard(settings: Settings, device: Device) -> contextlib.AbstractContextManager[None]:
    """Around what is traced: what fails in it is told of the model."""
    return guarded(UntraceableOp, lambda: f"{settings.model.name} cannot be traced for {device.name}", remedy_for_trace)


def _record(step: TrainingStep, session: VirtualSession, shape: BatchShape) -> Trace:
    start, _ = _prepare_and_run(step, session, shape)
    session.recorder.is_closed = True
    session.recorder.trace.warm_from = start
    return session.recorder.trace


def _record_stages(
    step: TrainingStep, session: VirtualSession, shape: BatchShape, stages: Sequence[int], counts: Sequence[int]
) -> list[Trace]:
    assert step.pipeline is not None
    trace = session.recorder.trace
    spans: dict[tuple[int, int], tuple[int, int]] = {}
    for count in counts:
        step.pipeline.micro_batches = count
        for stage in stages:
            if not spans:
                spans[count, stage] = _prepare_and_run(step, session, shape)
                continue
            step.pipeline.become(stage)
            spans[count, stage] = _run_warm(step, session, shape)
    session.recorder.is_closed = True
    prepared = spans[counts[0], stages[0]][0]
    if len(spans) == 1:
        trace.warm_from = prepared
        return [trace]
    parallel = step.settings.parallel
    ranks = parallel.world_size // parallel.pipeline
    path, firsts = place_of_blocks(unwrapped(step.model), step.settings), first_blocks(step.settings)
    return [
        of_stage(
            replace(window(trace, prepared, *span), micro_steps=count, accumulation=count), (stage - stages[0]) * ranks,
            ranks, (path, firsts[stage] - firsts[stages[0]]),
        )
        for (count, stage), span in spans.items()
    ]  # fmt: skip


def _prepare_and_run(step: TrainingStep, session: VirtualSession, shape: BatchShape) -> tuple[int, int]:
    """Run what prepares the step and then the step; returns the events between which it lies."""
    recorder = session.recorder
    parameters = list(step.model.parameters())
    trainable = [p for p in parameters if p.requires_grad]
    recorder.own(parameters, Category.PARAMETER)
    recorder.name(dict(step.model.named_parameters()))
    recorder.own(step.model.buffers(), Category.OTHER)
    recorder.own(quantization_scales(step.model), Category.PARAMETER)
    own_gradient = functools.partial(_own_gradient, recorder)
    if isinstance(step.optimizer, OptimizerInBackward):
        step.optimizer.before_update = own_gradient
    elif isinstance(step.optimizer, DeepSpeedOptimizer):
        for category, tensors in step.optimizer.tensors_by_category().items():
            recorder.own(tensors, category)
    else:
        for parameter in trainable:
            parameter.register_post_accumulate_grad_hook(own_gradient)
    if step.settings.compile != "none":
        _compile(step, session, shape)
    if step.settings.parallel.splits_weights:  # makes its buffers in the first step
        count = _micro_steps(step) if step.pipeline is not None else 1
        step.run([_batch(step, session, shape, recorder) for _ in range(count)], StepObserver())
    else:
        _prime(step, with_work(step.model, step.settings.workload, trainable), recorder)
    state = [v for values in step.optimizer.state.values() for v in values.values() if isinstance(v, Tensor)]
    recorder.own(state, Category.OPTIMIZER_STATE)
    _describe(step, session, shape, trainable, state)
    return _run_warm(step, session, shape)


def _run_warm(step: TrainingStep, session: VirtualSession, shape: BatchShape) -> tuple[int, int]:
    events = session.recorder.trace.events
    start = len(events)
    batches = [_batch(step, session, shape, session.recorder) for _ in range(_micro_steps(step))]
    observer = session.recorder if not step.settings.parallel.keeps_gathered else _Summing(session.recorder, step.model)
    step.run(batches, observer)
    del batches
    return start, len(events)


class _Summing(StepObserver):
    """Tells the recorder which tensors are gradients that wait to be sent."""

    def __init__(self, recorder: Recorder, model: nn.Module):
        self._recorder, self._model = recorder, model

    @contextlib.contextmanager
    def phase(self, phase: Phase, micro_step: int = -1) -> Iterator[None]:
        """Around one phase; after a backward pass gradients of whole weights are there."""
        with self._recorder.phase(phase, micro_step):
            yield
        if phase is Phase.BACKWARD:
            self._recorder.own(unsent_gradients(self._model), Category.GRADIENT)


def _micro_steps(step: TrainingStep) -> int:
    if step.pipeline is not None:
        return step.pipeline.micro_batches
    accumulation = step.settings.batch.gradient_accumulation_steps
    parallel = step.settings.parallel  # the first one gathers weights, the last one sends gradients
    return min(accumulation, 3 if parallel.keeps_gathered and parallel.zero == 1 else 2)


def _describe(
    step: TrainingStep, session: VirtualSession, shape: BatchShape, trainable: list[nn.Parameter], state: list[Tensor]
) -> None:
    """Note what the trace is of."""
    trace, parallel = session.recorder.trace, step.settings.parallel
    trace.total_parameters = parameter_count(step.model)
    trace.trainable_parameters = sum(p.numel() for p in trainable)
    trace.checkpoint_bytes = _bytes(trainable) + _bytes(state)
    trace.micro_batch_size, trace.sequence_length = shape.size, shape.length
    trace.world_size, trace.expert_overlap = parallel.world_size, parallel.expert_overlap
    trace.gpus_per_machine = step.settings.cluster.gpus_per_node
    trace.async_tensor, trace.allocator = parallel.async_tensor, step.settings.allocator.conf
    trace.network = None if step.settings.cluster.network == "auto" else step.settings.cluster.network
    trace.micro_steps, trace.accumulation = _micro_steps(step), step.settings.batch.gradient_accumulation_steps
    trace.paged_bytes, trace.tf32 = paged_bytes(step.optimizer), step.policy.tf32
    trace.unseen_parameters = unseen_parameters(step.model, step.settings.workload)
    trace.looped_tokens = shape.length if is_token_by_token(step.model) else 0
    if hasattr(step.model, "config") and has_rotary_positions(step.model.config):
        trace.positions = maximum_length(step.model.config) or 0
    if step.settings.quantization != "none":
        trace.unpacked_expert_bytes, trace.narrow_bytes = unpacked_expert_bytes(step.model), narrow_bytes(step.model)
    trace.compute_dtype = str(step.policy.compute_dtype).removeprefix("torch.")
    trace.documents = "" if step.documents is None else step.documents.description


def _compile(step: TrainingStep, session: VirtualSession, shape: BatchShape) -> None:
    """Have the graphs captured by a first micro-step; what the compiler does meanwhile is not part of a warm step."""
    # held back, as DDP would learn from a first reduction which buckets to make, and tell its peers
    with session.recorder.muted(), holding_gradients(step.called, step.settings, is_last=False), step.around_passes():
        if step.pipeline is None:
            step.micro_step(_batch(step, session, shape, session.recorder), 1.0, 0, StepObserver())
        else:
            passes = step.pipeline.passes  # its records would have to be of graphs
            step.pipeline.passes = None if passes is None else FirstPasses()
            count = _micro_steps(step)
            few = min(count, step.settings.parallel.pipeline)  # what every schedule does with
            step.pipeline.start_anew(few)
            batches = [_batch(step, session, shape, session.recorder) for _ in range(few)]
            step.pipeline.run(step.workload, batches, 1.0, StepObserver())
            step.pipeline.passes = passes
            step.pipeline.start_anew(count)  # its buffers were made while nothing was recorded
        step.optimizer.zero_grad(set_to_none=True)


def _prime(step: TrainingStep, trainable: list[torch.nn.Parameter], recorder: Recorder) -> None:
    """Create the optimizer state by one update, and the loss scale."""
    if step.scaler is not None:
        step.scaler.scale(torch.empty(1, device=trainable[0].device))
    for parameter in trainable:
        parameter.grad = torch.empty_like(parameter)
        recorder.own([parameter.grad], Category.GRADIENT)
    step.optimizer.step()
    step.optimizer.zero_grad(set_to_none=True)


def _batch(step: TrainingStep, session: VirtualSession, shape: BatchShape, recorder: Recorder) -> dict[str, Tensor]:
    with torch.device(session.torch_device):
        batch = step.workload.example_batch(step.settings, shape.size, shape.length)
    recorder.own(batch.values(), Category.OTHER)
    return batch


def _own_gradient(recorder: Recorder, parameter: Tensor) -> None:
    if parameter.grad is None:
        raise RuntimeError("a parameter has no gradient after its gradient was accumulated")
    recorder.own([parameter.grad], Category.GRADIENT)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
