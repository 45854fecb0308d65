"""How a program sets PyTorch's allocator, in its own code or around it, and what of its memory nothing uses."""

import pytest

from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.units import GIB
from forerun.virtual.cuda.launchers import parse_command

VARYING = """
import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(8):
    rows = 40_000 + step * 7_330 % 30_000
    model(torch.randn(rows, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
FIRST = 'import os\nos.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"\n'
CALL = "import torch\ntorch.cuda.memory._set_allocator_settings('expandable_segments:True')\n"


def forecast(folder, head="", gpu="a100-40gb"):
    path = folder / "train.py"
    path.write_text(head + VARYING)
    command = ["python", str(path)]
    forecasts, run = forecast_program(parse_command(command), command, [device(gpu)])
    assert run.exit_code == 0, run.error
    return forecasts[0]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return forecast(tmp_path_factory.mktemp("plain"))


def test_memory_that_nothing_uses_is_told_with_what_would_help(plain):
    (fault,) = (each for each in plain.findings if each.kind == "fragmentation")
    assert plain.memory.peak_reserved_bytes - plain.memory.peak_allocated_bytes > GIB
    assert fault.bytes is not None
    assert fault.bytes > GIB / 2
    assert "expandable_segments:True" in fault.text


@pytest.mark.parametrize("head", [FIRST, CALL])
def test_a_program_sets_its_allocator(tmp_path, plain, head):
    memory = (own := forecast(tmp_path, head)).memory
    assert memory.peak_allocated_bytes == plain.memory.peak_allocated_bytes
    assert memory.peak_reserved_bytes < 1.1 * memory.peak_allocated_bytes
    assert memory.peak_reserved_bytes < plain.memory.peak_reserved_bytes - GIB / 2
    assert [each.kind for each in own.findings if each.kind == "fragmentation"] == []


def test_the_environment_sets_it(tmp_path, monkeypatch, plain):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True,backend:cudaMallocAsync")
    own = forecast(tmp_path, "")
    assert own.memory.peak_reserved_bytes < plain.memory.peak_reserved_bytes - GIB / 2
    (warning,) = (each for each in own.warnings if "PYTORCH_ALLOC_CONF" in each)
    assert "backend:cudaMallocAsync" in warning


def test_there_is_none_on_rocm(tmp_path, plain):
    own = forecast(tmp_path, FIRST, "mi300x")
    assert own.memory.peak_reserved_bytes > plain.memory.peak_reserved_bytes - GIB / 2
    assert any("no expandable segments on ROCm" in each for each in own.warnings)
    assert [each.kind for each in own.findings if each.kind == "fragmentation"] == []
