"""Evaluation that repeats is played: the same operators, the same memory, and hardly any time."""

import pytest
import torch
from torch import nn

import forerun
from forerun.trace import OP
from forerun.virtual.cuda.repeated_calls import ALIKE, RepeatedCalls


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head, self.calls = nn.Linear(64, 64), nn.Linear(64, 1000), 0

    def forward(self, x, scale=1.0):
        self.calls += 1
        logits = self.head(torch.relu(self.layer(x)) * scale)
        return {"logits": logits, "loss": logits.mean(), "none": None}


def evaluate(times, is_played, shape=(32, 64), prepare=lambda net: None):
    """Names of the operators, the peak, and how often the module ran."""
    with forerun.virtual_cuda("t4") as gpu:
        net = Net().cuda().eval()
        prepare(net)
        recorder = gpu._session.recorder
        repeats = RepeatedCalls(recorder)
        total = 0.0
        with torch.no_grad():
            for _ in range(times):
                x = torch.zeros(shape, device="cuda")
                output = repeats(nn.Module.__call__, net, (x,), {"scale": 2.0}) if is_played else net(x, scale=2.0)
                assert output["logits"].shape == (*shape[:-1], 1000)
                assert output["logits"].is_cuda
                total += output["loss"].item()
        names = [gpu.trace.calls[gpu.trace.ops[i].call].name for kind, i in gpu.trace.events if kind == OP]
        names = [name for name in names if "empty" not in name]
        return names, gpu.memory.peak_allocated_bytes, net.calls, total, recorder.live_bytes


def test_played_calls_do_what_calls_do():
    run, played = evaluate(10, False), evaluate(10, True)
    assert (run[2], played[2]) == (10, ALIKE)
    assert played[:2] == run[:2]
    assert played[3:] == run[3:]


def test_weights_that_autocast_casts_do_not_matter_but_what_a_module_keeps_does():
    def keep(net):
        forward, kept = net.forward, []
        net.forward = lambda x, scale: kept.append(x + 1) or forward(x, scale)

    assert evaluate(6, True, prepare=keep)[2] == 6
    with forerun.virtual_cuda("a10") as gpu, torch.no_grad():
        net, repeats = Net().cuda().eval(), RepeatedCalls(gpu._session.recorder)
        for _ in range(6):
            x = torch.zeros(32, 64, device="cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16):
                repeats(nn.Module.__call__, net, (x,), {})
    assert net.calls == ALIKE


def test_other_shapes_and_gradients_run():
    with forerun.virtual_cuda("t4") as gpu:
        net = Net().cuda().eval()
        repeats = RepeatedCalls(gpu._session.recorder)
        with torch.no_grad():
            for rows in range(1, 8):
                repeats(nn.Module.__call__, net, (torch.zeros(rows, 64, device="cuda"),), {})
        for _ in range(5):
            repeats(nn.Module.__call__, net, (torch.zeros(4, 64, device="cuda"),), {})["loss"].backward()
    assert net.calls == 12


@pytest.mark.parametrize(
    "prepare",
    [nn.Module.train, lambda net: net.layer.register_forward_hook(lambda *_: None)],
    ids=["training", "hook"],
)
def test_modules_in_training_or_with_hooks_run(prepare):
    assert evaluate(6, True, prepare=prepare)[2] == 6


def test_results_that_are_no_new_tensors_run():
    calls = []

    class Same(nn.Module):
        def forward(self, x):
            calls.append(x)
            return x

    with forerun.virtual_cuda("t4") as gpu, torch.no_grad():
        repeats, x = RepeatedCalls(gpu._session.recorder), torch.zeros(8, 64, device="cuda")
        for _ in range(5):
            assert repeats(nn.Module.__call__, Same().eval(), (x,), {}) is x
    assert len(calls) == 5
