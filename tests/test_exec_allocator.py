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


def forecast(folder, head="", gpu="a100-40gb", end="", fits=True):
    path = folder / "train.py"
    path.write_text(head + VARYING + end)
    command = ["python", str(path)]
    forecasts, run = forecast_program(parse_command(command), command, [device(gpu)])
    assert (run.exit_code == 0) == fits, run.error
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


def test_a_cache_that_each_step_gives_back_is_not_reserved_and_is_told(tmp_path, plain):
    own = forecast(tmp_path, end="    torch.cuda.empty_cache()\n")
    assert own.memory.peak_allocated_bytes == plain.memory.peak_allocated_bytes
    assert own.memory.peak_reserved_bytes < plain.memory.peak_reserved_bytes - GIB / 2
    (fault,) = (each for each in own.findings if each.kind == "empties-cache")
    assert fault.line == "train.py:12"
    once = forecast(tmp_path, end="torch.cuda.empty_cache()\n")
    assert once.memory.peak_reserved_bytes == plain.memory.peak_reserved_bytes
    assert [each.kind for each in once.findings if each.kind == "empties-cache"] == []


@pytest.mark.parametrize(("share", "fits"), [(0.05, False), (0.5, True)])
def test_a_process_that_takes_a_share_of_the_card_has_no_more(tmp_path, share, fits):
    own = forecast(tmp_path, f"import torch\ntorch.cuda.set_per_process_memory_fraction({share})\n", fits=fits)
    assert own.fits == fits
    assert (own.out_of_memory is None) == fits


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("CUDA_LAUNCH_BLOCKING", "1", "the host waits for every kernel"),
        ("CUDA_LAUNCH_BLOCKING", "0", ""),
        ("NCCL_P2P_DISABLE", "1", ""),
    ],
)
def test_variables_that_are_not_followed_are_told(tmp_path, name, value, words):
    own = forecast(tmp_path, f"import os\nos.environ['{name}'] = '{value}'\n")
    told = [each for each in own.warnings if name in each]
    assert [words in each for each in told] == ([True] if words else [])


def test_a_host_that_waits_for_every_kernel_is_slower(tmp_path, plain):
    own = forecast(tmp_path, "import os\nos.environ['CUDA_LAUNCH_BLOCKING'] = '1'\n")
    assert own.step.phases.host_seconds > 10 * plain.step.phases.host_seconds
    assert own.step.phases.forward_seconds == pytest.approx(plain.step.phases.forward_seconds)


def test_libraries_take_no_tf32_where_a_variable_forbids_it(tmp_path, plain):
    switch = "import torch\ntorch.set_float32_matmul_precision('high')\n"
    with_it = forecast(tmp_path, switch).step.seconds.expected
    without = forecast(tmp_path, "import os\nos.environ['NVIDIA_TF32_OVERRIDE'] = '0'\n" + switch).step.seconds.expected
    assert with_it < without == pytest.approx(plain.step.seconds.expected)
