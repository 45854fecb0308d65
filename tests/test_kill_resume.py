"""Killed with SIGKILL at random moments and started again, a run ends with the weights of a run that was not."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DRIVER = Path(__file__).parent / "kill_driver.py"


def start(folder, kind="plain"):
    command = [sys.executable, str(DRIVER), str(folder), kind, "slow"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_to_end(folder, kind="plain"):
    out, err = start(folder, kind).communicate(timeout=280)
    assert out, err
    return out.strip()


def kill_at_random(folder, kills, seed, kind="plain"):
    """Kill the run `kills` times, each a random moment after its first checkpoint of that process could be there."""
    chance = random.Random(seed)
    killed = 0
    while killed < kills:
        process = start(folder, kind)
        ready = time.monotonic() + 60
        before = len(list(folder.glob("*"))) if folder.exists() else 0
        while process.poll() is None and time.monotonic() < ready and len(list(folder.glob("*"))) <= before:
            time.sleep(0.002)
            if killed and chance.random() < 0.001:
                break
        time.sleep(chance.uniform(0, 0.08))
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        killed += 1
    return killed


def test_three_kills(tmp_path):
    expected = run_to_end(tmp_path / "whole")
    (tmp_path / "killed").mkdir()
    assert kill_at_random(tmp_path / "killed", 3, seed=1) >= 1
    assert run_to_end(tmp_path / "killed") == expected


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["plain", "background", "workers", "bucketed", "packed"])
def test_twenty_kills_of_each_kind(tmp_path, kind):
    expected = run_to_end(tmp_path / "whole", kind)
    total = 0
    for seed in range(100):
        folder = tmp_path / f"killed{seed}"
        folder.mkdir()
        total += kill_at_random(folder, 4, seed, kind)
        assert run_to_end(folder, kind) == expected, f"seed {seed}"
        if total >= 20:
            break
    assert total >= 20
