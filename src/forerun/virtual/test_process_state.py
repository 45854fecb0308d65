"""What a program sets for its process, and what is there behind it."""

import contextlib
import random

import pytest
import torch

from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.virtual.cuda.launchers import parse_command
from forerun.virtual.process_state import convolutions_use_tf32, process_state_put_back, products_use_tf32

PROGRAM = """
import random
import torch
from torch import nn
torch.set_default_dtype(torch.bfloat16)
torch.set_default_device("cuda")
torch.backends.cuda.enable_flash_sdp(False)
torch.autograd.set_detect_anomaly(True)
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.conv.fp32_precision = "ieee"
torch.backends.cudnn.deterministic = True
torch.set_num_threads(1)
torch.manual_seed(7)
random.seed(7)
net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Flatten(), nn.Linear(16 * 900, 8))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    net(torch.ones(4, 3, 32, 32)).sum().backward()
    optimizer.step()
"""


ACCELERATED = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=4)
model = torch.nn.Linear(8, 8)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(2):
    accelerator.backward(model(torch.ones(4, 8, device=accelerator.device)).sum())
    optimizer.step()
"""


def state():
    return (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.is_anomaly_enabled(),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.deterministic,
        torch.get_num_threads(),
        torch.get_rng_state().tolist(),
        random.getstate(),
    )


def test_nothing_that_a_program_sets_outlives_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    command, before = ["python", str(script)], state()
    _, run = forecast_program(parse_command(command), command, [device("a100-40gb")])
    assert run.exit_code == 0, run.error
    assert state() == before


def test_a_second_accelerator_is_no_continuation_of_the_first(tmp_path):
    """Its states are the process's: another precision was refused, and epochs ended as the first program's did."""
    script, command = tmp_path / "train.py", ["python", str(tmp_path / "train.py")]
    state = pytest.importorskip("accelerate.state").GradientState
    before = dict(state._shared_state)  # of tests that use accelerate themselves
    for precision in ("bf16", "no"):
        script.write_text(ACCELERATED.replace("bf16", precision))
        _, run = forecast_program(parse_command(command), command, [device("a100-40gb")])
        assert run.exit_code == 0, run.error
        assert state._shared_state == before


@pytest.mark.parametrize("older", [True, False])
def test_switches_by_their_older_and_newer_names(older):
    assert convolutions_use_tf32()
    assert not products_use_tf32()
    with process_state_put_back():
        if older:
            torch.backends.cudnn.allow_tf32 = False
            torch.backends.cuda.matmul.allow_tf32 = True
        else:
            torch.backends.cudnn.conv.fp32_precision = "ieee"
            torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert not convolutions_use_tf32()
        assert products_use_tf32()
    assert convolutions_use_tf32()
    assert not products_use_tf32()
    assert torch.backends.cudnn.allow_tf32  # it answers again


def test_a_failure_puts_back_as_well():
    with contextlib.suppress(ZeroDivisionError), process_state_put_back():
        torch.set_default_dtype(torch.float64)
        raise ZeroDivisionError
    assert torch.get_default_dtype() is torch.float32
