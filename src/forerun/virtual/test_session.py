"""A virtual device in use: lifetimes, phases, modules, and that leaving it leaves nothing behind."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from forerun.hardware.catalogue import device
from forerun.memory.replay import replay_memory
from forerun.trace import Phase
from forerun.virtual import autocast
from forerun.virtual.describe import grouped_flops
from forerun.virtual.session import VirtualSession

A100 = device("a100-40gb")


def test_a_python_list_becomes_a_tensor_on_the_device():
    with VirtualSession(A100) as session:
        tensor = torch.tensor([1.0, 2.0], device=session.torch_device)
        assert (tensor + 1).shape == (2,)


def test_storages_die_when_the_last_tensor_does():
    with VirtualSession(A100) as session:
        tensor = torch.empty(1024, device=session.torch_device)
        view = tensor[:10]
        del tensor
        assert session.recorder.live_bytes == 4096
        del view
        assert session.recorder.live_bytes == 0


def test_autocast_copies_die_with_their_context():
    with VirtualSession(A100) as session:
        model = nn.Linear(64, 64, device=session.torch_device)
        inputs = torch.empty(8, 64, device=session.torch_device)
        before = session.recorder.live_bytes
        with torch.no_grad(), torch.autocast("virtual", dtype=torch.float16):
            out = model(inputs)
            assert session.recorder.live_bytes == before + 64 * 64 * 2 + 64 * 2 + 8 * 64 * 2
        del out
        assert session.recorder.live_bytes == before
        assert not autocast._cast_weights


def test_modules_and_recomputation_are_labelled():
    with VirtualSession(A100) as session:
        model = nn.Sequential(nn.Linear(8, 8), nn.GELU()).to(session.torch_device)
        session.name_modules(model)
        inputs = torch.empty(2, 8, device=session.torch_device, requires_grad=True)
        with session.recorder.phase(Phase.FORWARD, 0):
            out = torch.utils.checkpoint.checkpoint(model, inputs, use_reentrant=False)
        with session.recorder.phase(Phase.BACKWARD, 0):
            out.sum().backward()
    ops = [(session.recorder.trace.calls[o.call].name, o) for o in session.recorder.trace.ops]
    gelus = [o for name, o in ops if name == "aten.gelu.default"]
    products = [o for name, o in ops if name == "aten.addmm.default"]
    assert [(o.module, o.phase, o.recomputed) for o in gelus] == [("1", Phase.FORWARD, False)], (
        "recomputing stops early"
    )
    assert [(o.module, o.recomputed) for o in products] == [("0", False), ("0", True)]


def test_values_the_device_cannot_know_are_answered_and_noted():
    with VirtualSession(A100) as session:
        tensor = torch.empty(3, device=session.torch_device)
        assert tensor.sum().item() == 0.0
        assert not (tensor > 0).any()
        assert torch.div(torch.tensor(7), 2, rounding_mode="trunc").item() == 3, "constants are known"
    assert len(session.recorder.trace.assumed_values) == 2


def test_cpu_attention_follows_the_cpu_rules():
    cpu = A100.model_copy(update={"kind": "cpu", "name": "cpu", "compute_capability": None})
    for dropout, kernel in ((0.0, "_scaled_dot_product_flash_attention_for_cpu"), (0.1, "_safe_softmax")):
        with VirtualSession(cpu) as session:
            heads = torch.empty(2, 4, 16, 8, requires_grad=True)
            F.scaled_dot_product_attention(heads, heads, heads, dropout_p=dropout).sum().backward()
        assert any(kernel in call.name for call in session.recorder.trace.calls)


def test_cpu_attention_is_cast_once_under_autocast():
    """The math kernel computes in fp32 inside (`_scaled_dot_product_attention_math`), which autocast does not undo."""
    cpu = A100.model_copy(update={"kind": "cpu", "name": "cpu", "compute_capability": None})
    with VirtualSession(cpu) as session, torch.autocast("cpu", torch.bfloat16):
        heads = torch.empty(2, 4, 16, 8, requires_grad=True)
        result = F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.1)
    products = [call for call in session.recorder.trace.calls if call.name == "aten.bmm.default"]
    assert products
    assert {spec.dtype for call in products for spec in call.inputs} == {"float32"}
    assert result.dtype == torch.bfloat16


def test_leaving_restores_pytorch():
    before = torch.clear_autocast_cache, nn.Module._apply
    with pytest.raises(ValueError, match="stop"), VirtualSession(A100):
        raise ValueError("stop")
    assert (torch.clear_autocast_cache, nn.Module._apply) == before
    assert torch.zeros(2).tolist() == [0, 0], "tensors are real again"


def test_moving_a_module_keeps_ties():
    with VirtualSession(A100) as session:
        model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 10, bias=False))
        model[1].weight = model[0].weight
        model.to(session.torch_device)
        assert model[1].weight is model[0].weight
        assert session.recorder.live_bytes == 10 * 8 * 4


def test_grouped_flops_count_every_row_once():
    assert grouped_flops(torch.empty(100, 16), torch.empty(4, 16, 32)) == 2 * 100 * 16 * 32
    assert grouped_flops(torch.empty(16, 100), torch.empty(100, 32)) == 2 * 16 * 100 * 32


def test_a_step_returns_to_its_start():
    with VirtualSession(A100) as session:
        model = nn.Linear(32, 32, device=session.torch_device)
        session.recorder.trace.warm_from = len(session.recorder.trace.events)
        with session.recorder.phase(Phase.FORWARD, 0):
            loss = model(torch.empty(4, 32, device=session.torch_device)).sum()
        with session.recorder.phase(Phase.BACKWARD, 0):
            loss.backward()
        model.zero_grad()
        del loss
        session.recorder.is_closed = True
    replay = replay_memory(session.recorder.trace)
    assert replay.start_bytes == replay.end_bytes > 0


def test_a_process_that_has_trained_on_the_cpu_can_forecast():
    """PyTorch sizes its backward threads once: a device registered after the first backward pass has none."""
    code = (
        "import torch; (torch.ones(3, requires_grad=True) * 2).sum().backward(); import forerun\n"
        "with forerun.virtual_gpu('t4') as gpu: torch.zeros(4, device=gpu.device, requires_grad=True).sum().backward()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
