"""`torch.compile` in unmodified programs: what is captured, what runs as it is written and why, and what it forecasts.

These functions stand in for a program's; tests beside the module would be in a folder that Dynamo is kept out of.
"""

import dataclasses
import gc
import weakref
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo import convert_frame, utils
from torch._dynamo.variables.tensor import TensorVariable

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
from forerun.trace import OP, Phase
from forerun.virtual.compiled import compiling_afresh, virtual_backend
from forerun.virtual.cuda.compile_calls import cycles_let_go
from forerun.virtual.cuda.launchers import parse_command
from forerun.virtual.phases import recognising_phases
from forerun.virtual.session import VirtualSession
from forerun.virtual.trace_step import trace_step

SCRIPTS = Path(__file__).parent / "scripts"


def test_captured_code_believes_in_cuda_too():
    heard = {}

    @torch.compiler.disable
    def note(value):
        heard["device"] = value.device

    def double_on_cuda(x, host):
        if not (x.is_cuda and x.device.type == "cuda" and torch.cuda.is_available()):
            return x
        if torch.cuda.get_device_capability() != (8, 0):
            return x
        positions = torch.arange(x.shape[1], device=x.device) + torch.ones(1, device="cuda", dtype=torch.long)
        return x * 2 + host.cuda().sum() + positions

    with forerun.virtual_cuda("a100-40gb") as gpu:
        function = torch.compile(double_on_cuda)
        result = function(torch.ones(4, 8, device="cuda"), torch.ones(3))
        note(result)
        known = torch.compile(lambda ids: ids.cumsum(0) + 1)(torch.arange(4, device="cuda"))
        assert known.tolist() == [1, 2, 4, 7]
        assert gpu.compiled_eagerly == {}
    assert heard["device"] == torch.device("cuda", 0)
    assert any(call.name.startswith("fused") and call.issuer == "compiled" for call in gpu.trace.calls)


def test_a_function_without_gradients_is_captured():
    """As in the backward of a program's own `autograd.Function`."""
    with forerun.virtual_cuda("a100-40gb") as gpu:
        double = torch.compile(lambda x: torch.tanh(x) * x * 2)
        with torch.no_grad():
            double(torch.ones(4, 8, device="cuda"))
            assert not torch.is_grad_enabled()
        assert torch.is_grad_enabled()
    assert gpu.compiled_eagerly == {}


def test_a_copy_to_another_dtype_is_captured():
    """Inductor's pass over copies asks for the number of their device (`torch/_inductor/utils.py:497`, 2.13)."""
    with forerun.virtual_cuda("a100-40gb") as gpu:
        weight = torch.ones(8, 8, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        torch.compile(lambda x: torch.log_softmax((x @ x).float(), -1))(weight).sum().backward()
    assert gpu.compiled_eagerly == {}


def test_functions_are_captured_where_a_process_group_began_after_the_first_of_them(tmp_path):
    """`init_process_group` throws Dynamo's table of functions away; Megatron-Core compiles while it is imported."""
    script = tmp_path / "train.py"
    script.write_text(LATE_GROUP)
    forecasts, run = forecast_program(parse_command(["python", str(script)]), ["python", str(script)], [device("t4")])
    assert run.exit_code == 0, run.error
    assert not any("eager code" in text for text in forecasts[0].warnings)


LATE_GROUP = """
import os, torch
first = torch.compile(lambda x: x * 2 + 1)
os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29400"}
torch.distributed.init_process_group("nccl", rank=0, world_size=1)
second = torch.compile(lambda x: x * 3 + 1)
net = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    second(first(net(torch.ones(4, 8, device="cuda")))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_autocast_inside_captured_code():
    with forerun.virtual_cuda("a100-40gb") as gpu:

        @torch.compile
        def product(x):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return x @ x

        assert product(torch.ones(64, 64, device="cuda")).dtype == torch.bfloat16
    (call,) = [call for call in gpu.trace.calls if call.name.startswith("aten.mm")]
    assert {spec.dtype for spec in call.inputs} == {"bfloat16"}


def test_hooks_of_ours_neither_cut_graphs_nor_capture_them_again():
    with forerun.virtual_cuda("a100-40gb") as gpu:
        net = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16)).cuda()
        compiled = torch.compile(net, fullgraph=True)
        kernels = []
        for _ in range(2):
            begin = len(gpu.trace.ops)
            compiled(torch.ones(2, 16, device="cuda")).sum().backward()
            kernels.append(sum(not gpu.trace.calls[op.call].is_view for op in gpu.trace.ops[begin:]))
    assert kernels[1] - kernels[0] == len(list(net.parameters())), "gradients are added; capturing is not recorded"
    assert utils.counters["graph_break"] == {}


def test_pytorch_is_as_before():
    def now():
        return (
            torch.compile, convert_frame.CatchErrorsWrapper.__call__, utils.run_node, TensorVariable.specialize,
            nn.Module.__call__, torch.autocast.__init__, torch.accelerator.current_accelerator,
            len(torch.overrides._get_current_function_mode_stack()),
        )  # fmt: skip

    before = now()
    with forerun.virtual_cuda("t4"):
        torch.compile(lambda x: x + 1)(torch.ones(2, device="cuda"))
    assert now() == before
    assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist() == [2, 2]


class Cut(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x):
        x = torch.nn.functional.gelu(self.first(x)) * 2
        torch._dynamo.graph_break()
        if x.sum().item() > 0.5:
            x = x + torch.ones(1, device="cuda")
        return self.last(x).relu() + 1


def issuers(trace):
    return {trace.calls[op.call].issuer for op in trace.ops if op.phase == "forward"}


def test_a_cut_graph_is_compiled_on_both_sides_and_eager_between():
    with forerun.virtual_cuda("a100-40gb") as gpu:
        net = Cut().cuda()
        torch.compile(net)(torch.ones(4, 32, device="cuda")).sum().backward()
        assert len(gpu.compiling.graphs) >= 4, gpu.compiled_eagerly
    assert issuers(gpu.trace) == {"eager", "compiled"}
    assert any("graph_break" in reason for reason in gpu.compiling.breaks)
    assert gpu.compiled_eagerly == {}


def test_what_cannot_be_captured_runs_as_it_is_written_and_says_why(monkeypatch):
    """Dynamo failing on its own is an error that PyTorch 2.13 raises too; the forecast goes on."""
    from torch._dynamo import symbolic_convert

    with forerun.virtual_cuda("a100-40gb") as gpu:

        @torch.compile(fullgraph=True)
        def scaled(x):
            return (x * 2).relu()

        def fail(*_):
            raise RuntimeError("no such instruction")

        monkeypatch.setattr(symbolic_convert.InstructionTranslator, "run", fail)
        assert scaled(torch.ones(4, device="cuda")).shape == (4,)
    ((name, reason),) = gpu.compiled_eagerly.items()
    assert name.endswith("scaled")
    assert "no such instruction" in reason
    assert issuers(gpu.trace) == {"eager"}


@pytest.mark.parametrize(("backend", "is_told"), [("eager", False), ("aot_eager", False), ("openxla", True)])
def test_other_backends_run_operators_as_they_are(backend, is_told):
    with forerun.virtual_cuda("t4") as gpu:
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2, device="cuda"))
        assert gpu.compiling.graphs == []
    assert bool(gpu.compiled_eagerly) == is_told
    assert issuers(gpu.trace) == {"eager"}


def test_operators_on_functions_are_named():
    with forerun.virtual_cuda("a100-40gb") as gpu:
        x = torch.ones(4, device="cuda")

        def either(x):
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

        with pytest.raises(NotImplementedError, match="cond"):  # eager code has none of these either
            torch.compile(either)(x)
    assert "cond is an operator on functions, which is not modelled" in str(gpu.compiled_eagerly)


@pytest.mark.parametrize("is_causal", [True, False])
def test_flex_attention_is_one_kernel_of_the_blocks_that_its_mask_keeps(is_causal):
    """Of 4 x 4 blocks a causal mask keeps 10; forward two products of each, backward five."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    with forerun.virtual_cuda("h100-80gb") as gpu:
        mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 512, 512, device="cuda") if is_causal else None
        shape = {"device": "cuda", "dtype": torch.bfloat16, "requires_grad": True}
        q, k, v = (
            torch.randn(2, 8, 512, 64, **shape),
            torch.randn(2, 4, 512, 64, **shape),
            torch.randn(2, 4, 512, 64, **shape),
        )
        out = torch.compile(flex_attention)(q, k, v, block_mask=mask, enable_gqa=True)
        before = len(gpu.trace.ops)
        out.sum().backward()
        assert out.shape == q.shape
        assert [each.grad.shape for each in (q, k, v)] == [q.shape, k.shape, v.shape]
    assert gpu.compiled_eagerly == {}
    pairs = 2 * 8 * (10 if is_causal else 16) * 128 * 128
    flops = {call.name: call.flops for call in gpu.trace.calls if "flex" in call.name}
    assert flops["forerun.flex_attention_forward.default"] == 2 * 2 * 64 * pairs
    assert flops["forerun.flex_attention_backward.default"] == 5 * 2 * 64 * pairs
    assert gpu.trace.ops[before:]
    assert not any("softmax" in call.name for call in gpu.trace.calls)


def test_a_second_length_makes_a_graph_for_all_lengths():
    with forerun.virtual_cuda("a100-40gb") as gpu:
        table = nn.Embedding(100, 16).cuda()
        function = torch.compile(lambda ids: (table(ids) * 2).softmax(-1).sum())
        graphs = []
        for length in (8, 12, 16, 24):
            begin = len(gpu.trace.ops)
            function(torch.ones(4, length, dtype=torch.long, device="cuda")).backward()
            graphs.append(len(gpu.compiling.graphs))
            fused = [gpu.trace.calls[op.call] for op in gpu.trace.ops[begin:]]
            read = max(call.bytes_read for call in fused if call.name.startswith("fused"))
            assert read >= 4 * length * 16 * 4, "bytes are those of this length, not of the one that was captured"
    assert graphs == [2, 4, 4, 4]


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


@pytest.mark.parametrize("options", [{"mode": "reduce-overhead"}, {"options": {"triton.cudagraphs": True}}])
def test_cuda_graphs_take_a_pool_of_their_own(options):
    with forerun.virtual_cuda("a100-40gb") as gpu:
        net = torch.compile(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).cuda(), **options)
        net(torch.ones(8, 64, device="cuda")).sum().backward()
    assert "graph" in {call.issuer for call in gpu.trace.calls}
    assert len({storage.stream for storage in gpu.trace.storages}) == 2
    assert replay_memory(gpu.trace, passes=1).peak_allocated_bytes > 0


def test_modules_and_buffers_are_compiled_in_place():
    with forerun.virtual_cuda("t4") as gpu:
        norm = nn.BatchNorm1d(8).cuda()

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = norm

            def forward(self, x):
                return self.norm(x).relu()

        net = Net()
        net.compile()
        for _ in range(3):
            net(torch.ones(4, 8, device="cuda"))
        assert norm.num_batches_tracked.item() == 3
        assert len(gpu.compiling.graphs) == 2
    assert "compiled" in issuers(gpu.trace)


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


def test_cycles_of_the_compiler_die_with_its_work():
    """However often the collector runs meanwhile: what it has seen twice counts as old, and old cycles live on."""

    class Frame:
        """A cycle of its own, as Dynamo leaves them around the program's frames."""

    usual = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        with cycles_let_go():
            frame = Frame()
            frame.own = frame  # type: ignore[attr-defined]
            alive = weakref.ref(frame)
            _ = [[number] for number in range(100)]
            del frame
        is_alive = alive() is not None
    finally:
        gc.set_threshold(*usual)
    assert not is_alive


PARITY = 0.01
"""Of the seconds: the program makes its batch inside the step, the forecast's own step before it."""
LANGUAGE = {
    "gpt2": ("tiny-gpt2", "causal-lm"),
    "encoder": ("tiny-bert", "masked-lm"),
}


def kernels(trace, begin):
    """How often each operator with its sizes runs after an event, by who issues it."""
    calls = [trace.calls[trace.ops[index].call] for kind, index in trace.events[begin:] if kind == OP]
    return Counter((c.name, c.issuer, c.bytes_read, c.bytes_written, c.inputs) for c in calls if not c.is_view)


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
    assert forecast.run.seconds.expected == pytest.approx(
        forecast.run.phases.compile_seconds + forecast.run.phases.training_seconds
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
