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

`build` and the step run as `forerun exec` runs a program, with `cuda` as default device: what they make without naming
a device is on the virtual GPU, as is what they move there. The step runs twice and the second run is forecast.
"""

import dataclasses
from collections.abc import Callable

import torch
from torch import nn

from forerun.errors import ForerunError, UntraceableOp
from forerun.forecasting.live_card import CardMemory, clock_of
from forerun.forecasting.program import ProgramForecast, RunReading, forecast_run
from forerun.hardware.catalogue import Device
from forerun.hardware.catalogue import device as catalogue_device
from forerun.memory.allocator import AllocatorOptions
from forerun.memory.card import CardReplay, replay_on_card
from forerun.trace import Phase, Trace
from forerun.virtual.cuda.launchers import Program
from forerun.virtual.cuda.run import ProgramRun, run_in_session, watcher_of
from forerun.virtual.cuda.session import CudaSession
from forerun.virtual.cuda.steps import StepWatcher

Build = Callable[[], tuple[nn.Module, Callable[[], object]]]


def forecast_step(
    build: Build,
    *,
    gpu: str = "a100-40gb",
    samples: int = 1,
    tokens: int = 0,
    truth: bool | None = None,
    options: AllocatorOptions | None = None,
    cuda: str = "",
) -> ProgramForecast:
    """Forecast one warm step of `build`'s program; `samples` and `tokens` per step only scale the throughput.

    `truth` answers every truth value that the program reads from a tensor and that nobody can know ("are all positions
    attended to?"); without it the answer is no, and the forecast warns. `options` are those of PYTORCH_CUDA_ALLOC_CONF,
    `cuda` is the version that PyTorch was built for, which decides how large the context is.
    The forecast has the findings and assumptions of `forerun exec`. What the program writes to files is thrown away.

    Raises:
        UnknownDevice: no such GPU.
        UntraceableOp: the program cannot run on the virtual GPU.
    """
    device = catalogue_device(gpu, cuda)
    run = run_build(build, device, truth)

    def replay(trace: Trace, card: Device) -> CardReplay:
        return replay_on_card(_second_step(run), card, options=options)

    forecast = forecast_run(run, device, [_name(build)], 1, 1, None, reading=RunReading(replay))
    seconds = forecast.step.seconds.expected
    throughput = {"samples_per_second": samples / seconds, "tokens_per_second": tokens / seconds} if seconds else {}
    return forecast.model_copy(update={"step": forecast.step.model_copy(update=throughput)})


def trace_program(build: Build, device: Device, truth: bool | None = None) -> Trace:
    """The trace of `build`'s program on `device`; its warm step is the second run of the step.

    Raises:
        UntraceableOp: the program cannot run on the virtual GPU.
    """
    return _second_step(run_build(build, device, truth))


def run_build(build: Build, device: Device, truth: bool | None) -> ProgramRun:
    """Run `build` and its step twice on a `device` whose memory has no end.

    Raises:
        UntraceableOp: the program cannot run on the virtual GPU.
    """
    session = CudaSession(device, CardMemory(device, is_limited=False), clock=clock_of(device))
    session.assumptions.truth, session.assumptions.truth_is_stated = bool(truth), truth is not None

    def execute(_: Program, watcher: StepWatcher) -> None:
        with torch.device("cuda"):  # for what `step` makes, too
            with session.recorder.phase(Phase.PREPARE):
                _model, step = build()
            for _number in range(2):
                step()
                watcher.end_step()
            session.recorder.is_closed = True  # what the loop keeps outlives the step

    watcher = watcher_of(session, is_announced=True)
    run = run_in_session(Program(target=_name(build)), session, watcher, execute=execute)
    error = run.failure
    if isinstance(error, NotImplementedError | RuntimeError) and not isinstance(error, ForerunError):
        raise UntraceableOp(
            f"The step cannot be traced: {error}. Report the operator; it may have no fake kernel."
        ) from error
    if error is not None:
        raise error
    if run.exit_code:
        raise UntraceableOp(f"The step cannot be traced: it ends the process with exit code {run.exit_code}.")
    return run


def _second_step(run: ProgramRun) -> Trace:
    return dataclasses.replace(run.session.recorder.trace, warm_from=run.watcher.spans[-1].begin)


def _name(build: Build) -> str:
    return getattr(build, "__qualname__", type(build).__name__)
