"""What a program finds of the process that runs it here."""

import pytest
from tests.exec_runs import forecast

ACCELERATED = """
import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator()
model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model, optimizer = accelerator.prepare(model, optimizer)
for step in range(5):
    accelerator.backward(model(torch.randn(8, 64, device=accelerator.device)).square().mean())
    optimizer.step()
    optimizer.zero_grad()
"""
PLACED = """
import torch
from torch import nn

model = nn.Linear(64, 64).to("PLACE")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(5):
    model(torch.randn(8, 64, device="PLACE")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_an_accelerator_of_the_process_is_none_of_the_programs(tmp_path):
    """On this machine it is on the processor, and a program that took it over was one without a GPU."""
    accelerate = pytest.importorskip("accelerate")
    own = accelerate.Accelerator(cpu=True)
    document, _ = forecast(tmp_path, "", head=ACCELERATED)
    assert document.step.seconds.expected > 0
    assert document.memory.breakdown.parameter_bytes >= 4 * (64 * 64 + 64)
    assert own.device.type == "cpu"
    assert accelerate.state.AcceleratorState().device == own.device


@pytest.mark.parametrize(("place", "is_on_host"), [("cpu", True), ("cuda", False)])
def test_a_program_that_stays_on_the_host_is_told_so(tmp_path, place, is_on_host):
    document, _ = forecast(tmp_path, "", head=PLACED.replace("PLACE", place))
    assert any("run nothing on the GPU" in each for each in document.warnings) == is_on_host
    assert document.run.total_steps == 5
