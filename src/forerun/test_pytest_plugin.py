"""The pytest plugin in test suites of its own: what passes, what fails with which message, and what it costs."""

import re
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

SUITE = """
import unittest
import pytest
import torch
from torch import nn

def train(width, steps=2):
    net = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)).to("cuda")
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(steps):
        net(torch.ones(8, width, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

@pytest.fixture
def ones(virtual_gpu):
    return torch.ones(4, device="cuda")

def test_default_card(virtual_gpu):
    train(64)
    assert torch.cuda.get_device_name() == "Tesla T4"
    assert virtual_gpu.memory.peak_allocated_bytes > 0
    assert virtual_gpu.clock.seconds > 0

def test_no_card():
    assert not torch.cuda.is_available()

def test_fixture_on_the_card(ones):
    assert str(ones.device) == "cuda:0"

@pytest.mark.fits("a10", within=0.9)
def test_small(virtual_gpu):
    train(64)
    assert virtual_gpu.device.name == "a10"

@pytest.mark.parametrize("virtual_gpu", ["l4", "a100-40gb"], indirect=True)
def test_cards(virtual_gpu):
    assert virtual_gpu.device.name in torch.cuda.get_device_name().lower() or virtual_gpu.device.name == "a100-40gb"

@pytest.mark.fits("t4", within=0.5)
def test_half():
    train(23_000)

@pytest.mark.fits("t4")
def test_full():
    train(50_000)

@pytest.mark.fits("t4")
def test_wrong():
    assert torch.ones(2, device="cuda").numel() == 3

class TestOld(unittest.TestCase):
    @pytest.mark.fits("t4", within=0.1)
    def test_case(self):
        train(10_000)

@pytest.mark.fits("t4")
def test_skipped():
    pytest.skip("no reason")

@pytest.mark.fits("t5")
def test_unknown():
    pass
"""


def run(folder, *arguments):
    """pytest with the plugin in a process of its own; loaded by name where the package is installed without it."""
    installed = any(point.value == "forerun.pytest_plugin" for point in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "forerun.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider", *plugin, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


@pytest.mark.medium
def test_a_suite_passes_and_fails_where_it_should(tmp_path):
    (tmp_path / "test_suite.py").write_text(SUITE)
    result = run(tmp_path)
    output = result.stdout
    assert re.search(r"4 failed, 6 passed, 1 skipped,.* 1 error", output), output + result.stderr
    half = output[output.index("_ test_half _") :]
    assert re.search(r"test_half needs 1\d\.\d GiB of device memory at its peak", half)
    assert "50.0 % of t4 is 7.28 GiB of 14.6 GiB" in half
    assert "3.94 GiB  optimizer state  test_suite.py:12" in half
    assert "allocated at the peak, the largest:" in half
    assert "parameter  Sequential.0.weight" in half
    assert "test_suite.py:11" in half
    assert "test_case needs" in output
    full = output[output.index("_ test_full _") :]
    assert "CUDA out of memory (virtual GPU). Tried to allocate 9.31 GiB" in full
    assert "at test_suite.py:46: train(50_000)" in full
    assert "recorder.py" not in output
    assert "During handling" not in output
    assert "assert 2 == 3" in output
    assert "No GPU named 't5' in the catalogue. Nearest: t4" in output


@pytest.mark.medium
def test_a_mark_that_is_wrong_ends_the_collection(tmp_path):
    for mark, message in (("'t4', within=1.5", "found 't4', within=1.5"), ("'t4', witin=0.5", "found 't4', witin=0.5")):
        (tmp_path / "test_suite.py").write_text(f"import pytest\n@pytest.mark.fits({mark})\ndef test_one(): pass\n")
        result = run(tmp_path)
        assert result.returncode != 0
        assert "takes the name of a GPU and a share above 0 and at most 1" in result.stderr + result.stdout
        assert message in result.stderr + result.stdout


def test_a_suite_that_does_not_use_it_pays_nothing(tmp_path):
    (tmp_path / "test_suite.py").write_text(
        "import sys\ndef test_one(request):\n    request.config.pluginmanager.has_plugin('forerun') or 1\n"
        "    assert 'forerun.pytest_plugin' in sys.modules\n    assert 'torch' not in sys.modules\n"
    )
    result = run(tmp_path)
    assert result.returncode == 0, result.stdout
