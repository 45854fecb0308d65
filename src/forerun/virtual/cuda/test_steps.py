"""Where steps of a program end, whatever it does with its optimizers."""

import pytest

from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.virtual.cuda.launchers import parse_command

PROGRAM = """
import torch
from torch import nn

class Around(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.inner = torch.optim.SGD(self.param_groups, lr=0.1)
    def step(self, closure=None):
        self.inner.step()

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).cuda()
other = nn.Linear(10, 10).cuda()
kind = KIND
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(other.parameters(), lr=0.1)]
around = Around(model.parameters())
for step in range(100):
    other(model(torch.randn(32, 64, device="cuda"))).sum().backward()
    if kind == "made anew":
        optimizers = [torch.optim.AdamW(each.parameters()) for each in (model, other)]
    if kind == "nested":
        optimizers = [around]
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("kind", ["two", "made anew", "nested"])
def test_a_step_is_one_whoever_makes_it(kind, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.replace("KIND", repr(kind)))
    command = ["python", str(script)]
    (forecast,), run = forecast_program(parse_command(command), command, [device("t4")])
    assert (run.error, run.exit_code) == ("", 0)
    assert forecast.script.steps_seen == 3
    assert [span.samples for span in run.watcher.spans] == [32, 32, 32]
    assert forecast.run.total_steps == 100
