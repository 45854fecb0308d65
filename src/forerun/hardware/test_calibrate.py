"""What this machine is measured to do is plausible, and holding freed memory really saves fresh pages."""

import os
import subprocess
import sys

import pytest
import torch

from forerun.errors import FilesNotWritten
from forerun.hardware import micro_benchmarks
from forerun.hardware.calibrate import CPU_PRODUCTS, calibrate
from forerun.hardware.detect import detect_cpu
from forerun.hardware.host_memory import OPTIONS
from forerun.hardware.micro_benchmarks import disk_speed
from forerun.report.calibration import calibration_table

HERE = torch.device("cpu")


@pytest.fixture(scope="module")
def calibration(tmp_path_factory):
    messages = []
    calibration = calibrate(detect_cpu(), tmp_path_factory.mktemp("disk"), messages.append)
    assert len(messages) == len(set(messages)) >= 6, "each part is told once"
    return calibration


@pytest.mark.medium
def test_figures_are_plausible(calibration):
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    assert calibration.took_seconds < 30 * workers, "30 s on a machine that does nothing else"
    assert calibration.gpu == "cpu"
    assert 1e9 < calibration.peak_flops_per_second("float32") < 1e14
    assert calibration.peak_flops_per_second("float64") is None
    assert 1e8 < calibration.memory_bytes_per_second < 2e12
    assert 1e-7 < calibration.operator_host_seconds < 1e-3
    assert 0 <= calibration.fresh_page_seconds_per_byte < 1e-6
    assert 1e5 < calibration.disk_write_bytes_per_second < 1e11
    assert 0.1 < calibration.import_seconds < 60
    assert len([p for p in calibration.products if p.dtype == "float32"]) == len(CPU_PRODUCTS)


@pytest.mark.medium
def test_it_survives_the_ledger_as_json(calibration):
    document = calibration.model_dump_json(by_alias=True)
    assert type(calibration).model_validate_json(document) == calibration


@pytest.mark.medium
def test_the_table_says_what_changed(calibration):
    slower = calibration.model_copy(update={"import_seconds": 2 * calibration.import_seconds})
    table = calibration_table(slower, calibration, detect_cpu().device)
    changes = dict(zip(table.columns[0]._cells, table.columns[3]._cells, strict=True))
    assert changes["start of a process (s)"] == "+100.0 %"
    assert changes["tokenising (MB/s)"] == "+0.0 %"


def test_a_larger_product_takes_longer():
    small = micro_benchmarks.time_product(HERE, "float32", 1, 64, 64, 64)
    large = micro_benchmarks.time_product(HERE, "float32", 4, 512, 1024, 1024)
    assert large.seconds > small.seconds


FRESH = """
import resource
import torch
from forerun.hardware.host_memory import freed_memory_held

def fresh(count=20, size=48 * 2**20):
    for _ in range(10):
        torch.empty(size // 4).fill_(1.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        torch.empty(size // 4).fill_(1.0)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() / count / size

print(fresh())
with freed_memory_held() as held:
    print(fresh() if held else 0.0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_held_memory_is_not_fresh():
    result = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=True)
    before, after = map(float, result.stdout.split())
    assert before > 0.9, "without it every block is fresh"
    assert after < 0.1


def test_the_users_own_malloc_options_stay():
    program = "from forerun.hardware.host_memory import freed_memory_held\nwith freed_memory_held() as h: print(h)"
    for name in OPTIONS[:2]:
        result = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={name: "131072"}
        )
        assert result.stdout.strip() == "False"


def test_a_disk_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(FilesNotWritten, match=r"disk under .*file cannot be measured with 32"):
        disk_speed(tmp_path / "file")


def test_on_a_gpu_the_time_is_that_between_two_events(monkeypatch):
    """Of the kernels alone; the GPU sleeps while the host launches them. There is no GPU here: order and result only."""
    done = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            done.append("record")

        def synchronize(self):
            done.append("wait")

        def elapsed_time(self, end):
            return 0.25

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: done.append("sleep"), raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: done.append("ready"))
    assert micro_benchmarks.seconds_of(lambda: done.append("run"), torch.device("cuda")) == 0.25e-3
    assert done == ["ready", "sleep", "record", "run", "record", "wait"]


def test_attention_is_timed_in_both_directions():
    timed = micro_benchmarks.time_attention(HERE, "float32", 1, 2, 64, 16)
    assert 0 < timed.forward_seconds < 1
    assert 0 < timed.backward_seconds < 1
