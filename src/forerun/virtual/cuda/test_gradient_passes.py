"""Programs that make gradients and update nothing."""

import pytest

from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.virtual.cuda.launchers import parse_command

PROGRAM = """
import torch
from torch import nn

net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(32, 64, device="cuda")
for turn in range(6):
    net.zero_grad()
    net(x).square().mean().backward()
    torch.cuda.synchronize()
    END
"""


def forecast_of(end, tmp_path):
    script = tmp_path / "measure.py"
    script.write_text(PROGRAM.replace("END", end))
    command = ["python", str(script)]
    (forecast,), run = forecast_program(parse_command(command), command, [device("t4")])
    return forecast, run


def test_a_step_is_one_backward_pass(tmp_path):
    forecast, run = forecast_of("", tmp_path)
    assert run.updates_nothing
    assert [span.samples for span in run.watcher.spans] == [32] * 6
    assert forecast.step.seconds.expected > 0
    assert forecast.step.phases.optimizer_seconds == 0
    assert any("updates no weights" in warning for warning in forecast.warnings)


@pytest.mark.parametrize(
    "end", ["optimizer.step() if turn == 5 else None", "for w in net.parameters(): w.data -= 0.1 * w.grad"]
)
def test_an_update_makes_steps_of_its_own(end, tmp_path):
    forecast, run = forecast_of(end, tmp_path)
    assert not run.updates_nothing
    assert len(run.watcher.spans) == (1 if "turn" in end else 3)
    assert not any("updates no weights" in warning for warning in forecast.warnings)


def test_a_program_that_fails_has_no_steps(tmp_path):
    _, run = forecast_of("raise ValueError('mine') if turn == 4 else None", tmp_path)
    assert run.exit_code == 1
    assert not run.watcher.spans
