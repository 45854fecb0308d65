"""Forecast a training step of your own: any `nn.Module` and any step function.

    def build():
        model = MyModel()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        inputs = torch.zeros(32, 3, 64, 64)

        def step():
            model(inputs).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return model, step

    forerun.forecast_step(build, gpu="t4").memory.peak_allocated_bytes

`build` and the step run with the virtual GPU as default device; the step runs twice and the second run is forecast.
"""

import contextlib
from collections.abc import Callable

import torch
from torch import nn

from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import replay_clock
from forerun.errors import ForerunError, UntraceableOp
from forerun.forecasting.ranges import shares, spread
from forerun.hardware.catalogue import device as catalogue_device
from forerun.memory.allocator import AllocatorOptions
from forerun.memory.card import replay_on_card
from forerun.records import (
    Forecast,
    MemoryForecast,
    ParameterCounts,
    RunForecast,
    RunPhases,
    StepForecast,
)
from forerun.trace import Category, Phase, Trace
from forerun.virtual.phases import recognising_phases
from forerun.virtual.session import VirtualSession

Build = Callable[[], tuple[nn.Module, Callable[[], object]]]


def forecast_step(
    build: Build,
    *,
    gpu: str = "a100-40gb",
    samples: int = 1,
    tokens: int = 0,
    truth: bool | None = None,
    options: AllocatorOptions | None = None,
) -> Forecast:
    """Forecast one warm step of `build`'s program; `samples` and `tokens` per step only scale the throughput.

    `truth` answers every truth value that the program reads from a tensor ("are all positions attended to?"); without
    it the answer is no, and the forecast warns. `options` are those of PYTORCH_CUDA_ALLOC_CONF.

    Raises:
        UnknownDevice: no such GPU.
        UntraceableOp: the program cannot run on the virtual GPU.
    """
    device = catalogue_device(gpu)
    trace = trace_program(build, VirtualSession(device), truth)
    card = replay_on_card(trace, device, options=options)
    replay = card.memory
    costs = PriorCosts(device)
    clock = replay_clock(trace, costs)
    dtypes = [spec.dtype for call in trace.calls if call.flops for spec in call.inputs if "float" in spec.dtype]
    dtype = max(set(dtypes), key=dtypes.count) if dtypes else "float32"
    return Forecast(
        settings_hash="",
        gpu=device.name,
        world_size=1,
        fits=card.fits,
        parameters=ParameterCounts(total=trace.total_parameters, trainable=trace.trainable_parameters),
        memory=MemoryForecast(
            peak_allocated_bytes=replay.peak_allocated_bytes,
            peak_reserved_bytes=replay.peak_reserved_bytes,
            device_bytes=card.device_bytes,
            context_bytes=int(device.context_bytes.expected),
            capacity_bytes=device.memory_bytes,
            breakdown=replay.breakdown,
        ),
        step=StepForecast(
            seconds=spread(clock.seconds, *shares(costs.evidence)),
            phases=clock.phases,
            model_flops=clock.model_flops,
            hardware_flops=clock.hardware_flops,
            mfu=clock.model_flops / (clock.seconds * device.peak(dtype)),
            tokens_per_second=tokens / clock.seconds,
            samples_per_second=samples / clock.seconds,
        ),
        run=RunForecast(
            steps_per_epoch=1,
            total_steps=1,
            checkpoints_written=0,
            checkpoint_bytes=0,
            seconds=spread(clock.seconds, *shares(costs.evidence)),
            phases=RunPhases(training_seconds=clock.seconds),
            cost=None,
        ),
        warnings=[f"Time: {costs.description}.", *_assumed(trace)],
    )


def _assumed(trace: Trace) -> list[str]:
    reads = list(dict.fromkeys(trace.assumed_values))
    return [f"The program reads {len(reads)} values from tensors, answered with 0 or no: {reads[0]}"] if reads else []


def trace_program(build: Build, session: VirtualSession, truth: bool | None) -> Trace:
    """The trace of the second run of `build`'s step."""
    recorder = session.recorder
    answers = contextlib.nullcontext() if truth is None else recorder.answering(truth)
    try:
        with session, recognising_phases(recorder), answers, contextlib.ExitStack() as stack:
            stack.enter_context(torch.device(session.torch_device))  # for what `step` makes, too
            model, step = build()
            session.name_modules(model)
            parameters = list(model.parameters())
            recorder.own(parameters, Category.PARAMETER)
            recorder.own(model.buffers(), Category.OTHER)
            for parameter in parameters:
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(
                        lambda p: recorder.own([p.grad] if p.grad is not None else [], Category.GRADIENT)
                    )
            for phase in (Phase.PREPARE, Phase.FORWARD):
                recorder.trace.warm_from = len(recorder.trace.events)
                with recorder.phase(phase, 0):
                    step()
            recorder.is_closed = True
    except (NotImplementedError, RuntimeError) as error:
        if isinstance(error, ForerunError):
            raise
        raise UntraceableOp(
            f"The step cannot be traced: {error}. Report the operator; it may have no fake kernel."
        ) from error
    trace = recorder.trace
    trace.total_parameters = sum(p.numel() for p in parameters)
    trace.trainable_parameters = sum(p.numel() for p in parameters if p.requires_grad)
    return trace
