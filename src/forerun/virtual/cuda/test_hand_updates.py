"""Programs that update parameters without a PyTorch optimizer have the steps of those with one."""

import pytest
import torch

import forerun
from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.virtual.cuda.hand_updates import trained_tensors
from forerun.virtual.cuda.launchers import parse_command

PROGRAM = """
import torch
from torch import nn
from torch.utils.data import DataLoader

net = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 10)).cuda()
weights = list(net.parameters())
kind = KIND
if kind == "bare tensors":
    weights = [torch.randn(64, 10, device="cuda", requires_grad=True), torch.zeros(10, device="cuda", requires_grad=True)]
    net = lambda x: x @ weights[0] + weights[1]
if kind == "momenta":
    momenta = [torch.nn.Parameter(torch.zeros_like(w), requires_grad=False) for w in weights]
optimizer = torch.optim.SGD(weights, lr=0.1)
loader = DataLoader(torch.randn(3200, 64), batch_size=32)
for batch in loader:
    for part in batch.cuda().chunk(2):
        net(part).square().mean().div(2).backward()
    if kind == "optimizer":
        optimizer.step()
    elif kind == "data":
        for w in weights:
            w.data -= 0.1 * w.grad
    elif kind == "momenta":
        with torch.no_grad():
            torch._foreach_mul_(momenta, 0.9)
            torch._foreach_add_(momenta, [w.grad for w in weights])
            torch._foreach_add_(weights, momenta, alpha=-0.1)
    else:
        with torch.no_grad():
            for w in weights:
                w -= 0.1 * w.grad
    for w in weights:
        w.grad = None
"""


def forecast_of(kind, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.replace("KIND", repr(kind)))
    command = ["python", str(script)]
    (forecast,), run = forecast_program(parse_command(command), command, [device("t4")])
    assert (run.error, run.exit_code) == ("", 0)
    return forecast, run


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["data", "no grad", "momenta", "bare tensors"])
def test_steps_made_by_hand(kind, tmp_path):
    """Two micro-batches of 16 rows each; 100 steps, of which three are seen."""
    forecast, run = forecast_of(kind, tmp_path)
    by_optimizer, _ = forecast_of("optimizer", tmp_path)
    assert forecast.script.steps_seen == by_optimizer.script.steps_seen == 3
    assert forecast.run.total_steps == by_optimizer.run.total_steps == 100
    assert forecast.step.phases.optimizer_seconds > 0
    assert [span.samples for span in run.watcher.spans] == [32, 32, 32]
    if kind == "bare tensors":
        return
    parameters, breakdown = 19_722, forecast.memory.breakdown
    assert forecast.parameters == by_optimizer.parameters
    assert breakdown.gradient_bytes == by_optimizer.memory.breakdown.gradient_bytes
    assert breakdown.parameter_bytes == by_optimizer.memory.breakdown.parameter_bytes
    states = breakdown.optimizer_state_bytes
    assert 4 * parameters <= states < 8 * parameters if kind == "momenta" else states == 0


def test_views_of_a_tensor_that_was_written_to_are_no_leaves():
    """PyTorch raises where it is asked for their history; they live as long as somebody's graph does."""
    with forerun.virtual_cuda("t4"):
        whole = torch.zeros(22, device="cuda").requires_grad_()  # a shape that no other test leaves to the collector
        views = torch.split(whole * 1, 11)
        views[0]._base.detach().add_(1)
        with pytest.raises(RuntimeError, match="returns multiple views"):
            views[0].is_leaf  # noqa: B018
        assert [each for each in trained_tensors() if each.shape == whole.shape] == [whole]
