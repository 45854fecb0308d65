"""Trace scoring and generation, between the steps of a training, on the virtual twin of a device.

Ranks that share the weights gather them, or have a part of each layer, in evaluation too: the first of them is traced.
Of a pipeline's stages, which score in turn, the whole model is.
"""

from collections.abc import Callable

import torch
from torch import nn

from forerun.data.plan import BatchShape
from forerun.hardware.catalogue import Device
from forerun.settings.schema import Settings
from forerun.step.attention import take_offsets
from forerun.step.build import prepare_model
from forerun.step.precision import policy_of
from forerun.step.quantization import quantization_scales
from forerun.step.workload import Workload
from forerun.step.zero import DeepSpeedOptimizer
from forerun.trace import Category, Phase, Trace
from forerun.virtual.looped_experts import layers_as_run
from forerun.virtual.placement import place
from forerun.virtual.recorder import Recorder
from forerun.virtual.session import VirtualSession
from forerun.virtual.trace_step import StepToTrace, bound_step, tracing_guard

Work = Callable[[nn.Module, Recorder, torch.device], None]


def trace_scoring(settings: Settings, workload: Workload, device: Device, shape: BatchShape) -> Trace:
    """The trace of scoring one batch: the forward pass in evaluation mode, without gradients."""

    def score(model: nn.Module, recorder: Recorder, here: torch.device) -> None:
        with here:
            batch = workload.example_batch(settings, shape.size, shape.length)
        workload.loss(model, batch)  # what a model makes without naming a device is on the host, as in training

    return _trace_evaluation(StepToTrace(settings, workload, device, shape), score)


def trace_generation(settings: Settings, workload: Workload, device: Device, shape: BatchShape) -> Trace | None:
    """The trace of generating `evaluation.new_tokens` for one batch: its key-value cache is filled, then one token.

    The token is the last, and stands for all of them (`accumulation`). None for a model that does not generate token by
    token.
    """
    new = settings.evaluation.new_tokens

    def generate(model: nn.Module, recorder: Recorder, here: torch.device) -> None:
        ids = torch.zeros(shape.size, shape.length + new, dtype=torch.long, device=here)
        filled = model(input_ids=ids[:, :-1], use_cache=True, logits_to_keep=1)
        with recorder.phase(Phase.FORWARD, 1):
            model(input_ids=ids[:, -1:], past_key_values=filled.past_key_values, use_cache=True, logits_to_keep=1)

    if getattr(workload, "head", workload.name) != "causal-lm" or new == 0:
        return None
    trace = _trace_evaluation(StepToTrace(settings, workload, device, shape), generate)
    trace.micro_steps, trace.accumulation = 2, 1 + new
    return trace


def _trace_evaluation(how: StepToTrace, work: Work) -> Trace:
    parallel = how.settings.parallel
    is_shared = parallel.splits_weights or parallel.tensor > 1
    trace = _of_one_rank(how, work) if is_shared and parallel.pipeline == 1 else _of_whole_model(how, work)
    trace.tf32 = policy_of(how.settings).tf32
    return trace


def _of_whole_model(how: StepToTrace, work: Work) -> Trace:
    settings, device = how.settings, how.device
    with torch.device("meta"):
        model = prepare_model(settings, how.workload, pretrained=False).eval()
    take_offsets(model, settings, device.compute_capability)
    session = VirtualSession(device, settings.model.attention)
    with tracing_guard(settings, device), session, layers_as_run(model, settings, device, session.recorder):
        place(model, session.torch_device)
        _own(model, session.recorder)
        autocast, here = policy_of(settings).autocast(session.torch_device.type), torch.device(session.torch_device)
        session.recorder.trace.warm_from = len(session.recorder.trace.events)
        with session.recorder.phase(Phase.FORWARD, 0), torch.no_grad(), autocast:
            work(model, session.recorder, here)
        session.recorder.is_closed = True
    return session.recorder.trace


def _of_one_rank(how: StepToTrace, work: Work) -> Trace:
    """The second pass: what gathers weights makes its buffers in the first."""
    settings = how.settings.model_copy(update={"compile": "none"})
    with bound_step(StepToTrace(settings, how.workload, how.device, how.shape), 0) as (step, session):
        recorder, here = session.recorder, torch.device(session.torch_device)
        step.model.eval()
        _own(step.model, recorder)
        if isinstance(step.optimizer, DeepSpeedOptimizer):
            for category, tensors in step.optimizer.tensors_by_category().items():
                recorder.own(tensors, category)
        for _ in range(2):
            recorder.trace.warm_from = len(recorder.trace.events)
            with (
                recorder.phase(Phase.FORWARD, 0), torch.no_grad(), step.policy.autocast(here.type),
                step.around_passes(),
            ):  # fmt: skip
                work(step.model, recorder, here)
        recorder.is_closed = True
        trace = recorder.trace
        trace.world_size, trace.gpus_per_machine = settings.parallel.world_size, settings.cluster.gpus_per_node
        trace.network = None if settings.cluster.network == "auto" else settings.cluster.network
    return trace


def _own(model: nn.Module, recorder: Recorder) -> None:
    recorder.own(model.parameters(), Category.PARAMETER)
    recorder.own(model.buffers(), Category.OTHER)
    recorder.own(quantization_scales(model), Category.PARAMETER)
