"""`torch.compile` in unmodified programs: what is captured, what runs as it is written and why, and what it forecasts.

These functions stand in for a program's; tests beside the module would be in a folder that Dynamo is kept out of.
"""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch._dynamo import convert_frame, utils
from torch._dynamo.variables.tensor import TensorVariable

import forerun
from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.memory.replay import replay_memory
from forerun.virtual.cuda.compile_calls import cycles_let_go
from forerun.virtual.cuda.launchers import parse_command


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
