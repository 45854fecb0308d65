"""Training over 2 and 4 processes is training in one: weights, loss, checkpoints, a killed rank, another process count."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.rank_processes import run_ranks

from forerun.train.launch import NOTE, begun, note_run

DRIVER = Path(__file__).with_name("train_driver.py")


def run(folder, kind, world, steps, *more, restarts=0):
    folder.mkdir(parents=True, exist_ok=True)
    words = [str(folder), kind, str(world), str(steps), *map(str, more)]
    if restarts:
        command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone",
                   f"--nproc-per-node={world}", f"--max-restarts={restarts}", str(DRIVER), *words]  # fmt: skip
        process = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert process.returncode == 0, process.stderr[-3000:]
        printed = process.stdout
    else:
        printed = run_ranks(DRIVER, world, *words)
    (line,) = [text for text in printed.splitlines() if text.startswith("{")]
    return json.loads(line), torch.load(folder / "weights.pt", weights_only=True)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return run(tmp_path_factory.mktemp("alone"), "none", 1, 8)


def test_processes_that_are_started_again_go_on_with_their_run(tmp_path, monkeypatch):
    assert begun(None) is None
    monkeypatch.setenv(NOTE, str(tmp_path / "run"))
    assert begun(None) is None
    note_run("20260101-0000-abcd")
    assert begun(None) == "20260101-0000-abcd"
    assert begun("other") == "other"


def assert_same(actual, expected):
    """fp32 sums in another order, and AdamW divides small gradients by their size: 2e-4 after 8 updates of 1e-3."""
    assert set(actual) == set(expected)
    for name, weight in expected.items():
        assert torch.allclose(actual[name], weight, atol=2e-4), name


@pytest.mark.parity
@pytest.mark.parametrize(
    ("kind", "world"),
    [("ddp", 2), pytest.param("fsdp", 2, marks=pytest.mark.medium), pytest.param("ddp", 4, marks=pytest.mark.slow)],
)
def test_several_are_one(tmp_path, alone, kind, world):
    """Uneven lengths, an uneven last step, clipping across shards."""
    report, weights = run(tmp_path, kind, world, 8)
    assert report["losses"] == pytest.approx(alone[0]["losses"], rel=1e-4)
    assert_same(weights, alone[1])


@pytest.mark.medium
@pytest.mark.parity
def test_contrast_spans_ranks(tmp_path):
    report_of_one, one = run(tmp_path / "one", "none", 1, 4, "pairs")
    report, weights = run(tmp_path / "two", "ddp", 2, 4, "pairs")
    assert report["losses"] == pytest.approx(report_of_one["losses"], rel=1e-4)
    assert_same(weights, one)


@pytest.mark.medium
def test_a_killed_rank_restarts_from_the_last_checkpoint(tmp_path, alone):
    report, weights = run(tmp_path, "ddp", 2, 8, "die", 1, 5, restarts=2)
    assert (tmp_path / "died").exists()
    assert report["first"] == 4, "it went on from the newest checkpoint"
    assert_same(weights, alone[1])


@pytest.mark.medium
@pytest.mark.parametrize(
    ("first", "second"), [pytest.param(("fsdp", 2), ("none", 1), marks=pytest.mark.slow), (("none", 1), ("ddp", 2))]
)
def test_another_number_of_processes_goes_on(tmp_path, alone, first, second):
    run(tmp_path, *first, 8)
    for path in sorted(tmp_path.glob("step-*"))[2:]:
        shutil.rmtree(path)  # as if it had stopped after four steps
    report, weights = run(tmp_path, *second, 8)
    assert report["first"] == 4
    assert_same(weights, alone[1])


@pytest.mark.medium
@pytest.mark.parametrize("second", [pytest.param(("fsdp", 4), marks=pytest.mark.slow), ("none", 1)])
def test_sharded_checkpoints_are_read_by_any_number_of_processes(tmp_path, alone, second):
    """Two ranks write what they hold; four, or one, read what they need."""
    run(tmp_path, "fsdp", 2, 8, "sharded")
    checkpoints = sorted(tmp_path.glob("step-*"))
    names = {path.name for path in checkpoints[1].iterdir()}
    assert {"model-00000.safetensors", "model-00001.safetensors", "optimizer-00001.safetensors"} <= names
    sizes = [(checkpoints[1] / f"model-0000{n}.safetensors").stat().st_size for n in range(2)]
    assert max(sizes) < 0.6 * sum(sizes), "each holds about half"
    for path in checkpoints[2:]:
        shutil.rmtree(path)
    report, weights = run(tmp_path, *second, 8)
    assert report["first"] == 4
    assert_same(weights, alone[1])


@pytest.mark.medium
def test_a_sharded_checkpoint_with_a_damaged_part_is_passed_over(tmp_path, alone):
    run(tmp_path, "fsdp", 2, 8, "sharded")
    checkpoints = sorted(tmp_path.glob("step-*"))
    for path in checkpoints[2:]:
        shutil.rmtree(path)
    part = checkpoints[1] / "optimizer-00001.safetensors"
    part.write_bytes(part.read_bytes()[:-7])
    report, weights = run(tmp_path, "fsdp", 2, 8, "sharded")
    assert report["first"] == 2
    assert_same(weights, alone[1])
