"""Compiled steps of unmodified programs: what they forecast is what the step of settings forecasts.

These functions stand in for a program's; tests beside the module would be in a folder that Dynamo is kept out of.
"""

import dataclasses
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

import forerun
from forerun.clock.convolutions import is_backward, is_channels_last
from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import replay_clock
from forerun.data.plan import BatchShape
from forerun.forecasting.compiling import COMPILER_SECONDS, GPU_KERNEL_SECONDS
from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.memory.replay import replay_memory
from forerun.settings.load import settings_from
from forerun.step.build import bind_step, prepare_model
from forerun.step.heads import generic_workload
from forerun.step.training_step import StepObserver
from forerun.trace import OP, Issuer, Phase
from forerun.virtual.compiled import compiling_afresh, virtual_backend
from forerun.virtual.cuda.launchers import parse_command
from forerun.virtual.phases import recognising_phases
from forerun.virtual.session import VirtualSession
from forerun.virtual.trace_step import trace_step

SCRIPTS = Path(__file__).parent / "scripts"


def test_a_compiled_step_has_eager_optimizers():
    with forerun.virtual_cuda("a100-40gb") as gpu:
        net = nn.Linear(256, 256).cuda()
        optimizer = torch.optim.AdamW(net.parameters())

        @torch.compile
        def step(x):
            loss = (net(x) * 2).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        for _ in range(2):
            assert step(torch.ones(8, 256, device="cuda")).item() == 1.0
    assert "AdamW.step" in gpu.compiled_eagerly
    assert gpu.memory.breakdown.optimizer_state_bytes == pytest.approx(2 * 4 * (256 * 256 + 256), rel=0.01)
    assert {"backward", "forward", "optimizer"} <= {op.phase for op in gpu.trace.ops}


def test_blocks_of_one_class_share_what_was_compiled():
    """Each is handed to `torch.compile` by itself, as torchtitan does; more of them than PyTorch compiles anew."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            return self.linear(x).relu()

    with forerun.virtual_cuda("t4") as gpu:
        blocks = [torch.compile(Block().cuda()) for _ in range(12)]
        x = torch.ones(4, 8, device="cuda")
        for block in blocks:
            x = block(x)
        x.sum().backward()
    assert len(gpu.compiling.graphs) == 4, "forward and backward, of the first block's input and of the others'"
    assert not gpu.compiling.eager


PARITY = 0.01
"""Of the seconds: the program makes its batch inside the step, the forecast's own step before it."""


LANGUAGE = {
    "gpt2": ("tiny-gpt2", "causal-lm"),
    "encoder": ("tiny-bert", "masked-lm"),
}


def kernels(trace, begin):
    """How often each operator with its sizes runs after an event, by who issues it; clipping is no part of an update."""
    calls = [trace.calls[trace.ops[index].call] for kind, index in trace.events[begin:] if kind == OP]
    issuers = {Issuer.UPDATE: Issuer.EAGER}
    return Counter(
        (c.name, issuers.get(c.issuer, c.issuer), c.bytes_read, c.bytes_written, c.inputs)
        for c in calls
        if not c.is_view
    )


def seconds(trace, begin, name):
    part = dataclasses.replace(trace, events=trace.events[begin:], warm_from=0)
    return replay_clock(part, PriorCosts(device(name), tf32=trace.tf32)).seconds


@pytest.mark.medium
@pytest.mark.parity
@pytest.mark.parametrize("name", LANGUAGE)
def test_a_programs_step_is_the_forecasts_own_step(name):
    """The same kernels and the same peak, to the byte."""
    model_name, workload_name = LANGUAGE[name]
    settings = settings_from(
        {
            "name": "c", "workload": workload_name, "model": {"name": model_name}, "data": {"examples": 800},
            "batch": {"micro_batch_size": 8, "sequence_length": 128, "gradient_accumulation_steps": 1},
            "precision": "bf16-mixed", "compile": "default", "optimizer": {"implementation": "fused"},
        }
    )  # fmt: skip
    workload = generic_workload(workload_name)
    own = trace_step(settings, workload, device("a100-40gb"), BatchShape(8, 128))
    with forerun.virtual_cuda("a100-40gb") as gpu:
        model = prepare_model(settings, workload, pretrained=False).cuda()
        step = bind_step(settings, workload, model, "cuda", "inductor", (8, 0))
        for _ in range(2):
            with torch.device("cuda"):
                batch = workload.example_batch(settings, 8, 128)
            begin = len(gpu.trace.events)
            step.run([batch], StepObserver())
            del batch
        assert gpu.compiled_eagerly == {}
        program = gpu.trace
        end = len(program.events)
    program = dataclasses.replace(program, events=program.events[:end])
    start = next(n for n, (kind, index) in enumerate(own.events) if n >= own.warm_from and phase_of(own, kind, index))
    assert kernels(program, begin) == kernels(own, start)
    assert seconds(program, begin, "a100-40gb") == pytest.approx(seconds(own, start, "a100-40gb"), rel=PARITY)
    assert replay_memory(program, passes=1).peak_allocated_bytes == pytest.approx(
        replay_memory(own).peak_allocated_bytes, rel=PARITY
    )


def phase_of(trace, kind, index):
    """Whether an event is an operator of the step, not of what prepares it."""
    return kind == OP and trace.ops[index].phase != Phase.PREPARE


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)
        )

    def forward(self, x):
        return (x + self.layers(x)).relu()


def test_a_convolutional_step_is_the_one_that_the_forecasts_compiler_plays():
    """The program's `torch.compile` against the backend that settings with `compile` use, on a session of its own."""

    def train(compiled, model, where, recorder):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
        for _ in range(2):
            images, labels = torch.ones(16, 3, 16, 16, device=where), torch.ones(16, dtype=torch.long, device=where)
            begin = len(recorder.trace.events)
            nn.functional.cross_entropy(compiled(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            del images, labels
        return begin

    def build():
        return nn.Sequential(nn.Conv2d(3, 16, 3), Residual(16), Residual(16), nn.Flatten(), nn.Linear(16 * 14 * 14, 4))

    with compiling_afresh(), VirtualSession(device("a10"), is_compiled=True) as session:
        with torch.device("virtual"):
            model = build()
        compiled = torch.compile(model, backend=virtual_backend(session.recorder, "default"))
        with recognising_phases(session.recorder), session.recorder.phase(Phase.FORWARD, 0):
            own_begin = train(compiled, model, "virtual", session.recorder)
        own = dataclasses.replace(session.recorder.trace, events=list(session.recorder.trace.events))
    with forerun.virtual_cuda("a10") as gpu:
        model = build().cuda()
        begin = train(torch.compile(model), model, "cuda", gpu._session.recorder)
        program = dataclasses.replace(gpu.trace, events=list(gpu.trace.events))
        assert gpu.compiled_eagerly == {}
        assert int(model[1].layers[1].num_batches_tracked) == 2
    assert kernels(program, begin) == kernels(own, own_begin)
    assert seconds(program, begin, "a10") == pytest.approx(seconds(own, own_begin, "a10"), rel=PARITY)
    peaks = [
        replay_memory(dataclasses.replace(t, warm_from=b), passes=1) for t, b in ((program, begin), (own, own_begin))
    ]
    assert peaks[0].peak_allocated_bytes == pytest.approx(peaks[1].peak_allocated_bytes, rel=PARITY)


def test_compiling_is_paid_once_and_told():
    command = ["python", str(SCRIPTS / "compiled_loss.py")]
    (forecast,), run = forecast_program(parse_command(command), command, [device("l4")], total_steps=100)
    assert run.error == ""
    calls = run.session.compiling
    assert calls.kernels >= 3
    assert forecast.run.phases.compile_seconds == pytest.approx(COMPILER_SECONDS + GPU_KERNEL_SECONDS * calls.kernels)
    assert forecast.run.phases.training_seconds == pytest.approx(100 * forecast.step.seconds.expected)
    phases = forecast.run.phases
    assert phases.startup_seconds < forecast.step.seconds.expected
    assert forecast.run.seconds.expected == pytest.approx(
        phases.startup_seconds + phases.compile_seconds + phases.training_seconds
    )
    assert any("Compiling is taken as" in warning for warning in forecast.warnings)
    assert not any("eager" in warning for warning in forecast.warnings)


def test_compiled_images_are_laid_out_with_channels_last_where_inductor_does():
    def layouts(channels):
        with forerun.virtual_cuda("a10") as gpu:
            net = nn.Sequential(
                nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels, 3)
            )
            torch.compile(net.cuda())(torch.randn(2, 3, 32, 32, device="cuda")).sum().backward()
        calls = [call for call in gpu.trace.calls if "convolution" in call.name]
        images = [call.arguments[is_backward(call)] for call in calls]
        assert {is_backward(call) for call in calls} == {True, False}
        return [is_channels_last(image) for image in images]

    assert all(layouts(128))  # the copies of image and weights are recorded, the results follow
    assert not any(layouts(32))  # GraphLowering.decide_layout_opt (2.13): small channels alone are left as they are
