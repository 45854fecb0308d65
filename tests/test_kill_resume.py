"""Killed with SIGKILL at random moments and started again, a run ends with the weights of a run that was not."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

DRIVER = Path(__file__).parent / "kill_driver.py"
RANKS_DRIVER = Path(__file__).parent / "train_driver.py"
STEPS = 8


def start(folder, kind="plain"):
    command = [sys.executable, str(DRIVER), str(folder), kind, "slow"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_to_end(folder, kind="plain"):
    out, err = start(folder, kind).communicate()
    assert out, err
    return out.strip()


def kill_at_random(folder, kills, seed, kind="plain"):
    """Kill the run `kills` times, each a random moment after its first checkpoint of that process could be there."""
    chance = random.Random(seed)
    killed = 0
    while killed < kills:
        process = start(folder, kind)
        before = len(list(folder.glob("*"))) if folder.exists() else 0
        while process.poll() is None and len(list(folder.glob("*"))) <= before:
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


@pytest.mark.medium
def test_three_kills(tmp_path):
    expected = run_to_end(tmp_path / "whole")
    (tmp_path / "killed").mkdir()
    assert kill_at_random(tmp_path / "killed", 3, seed=1) >= 1
    assert run_to_end(tmp_path / "killed") == expected


@pytest.mark.slow
@pytest.mark.timeout(3600)
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


def of_ranks(folder, world):
    """The command that trains in so many processes."""
    several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"] if world > 1 else []
    kind = "ddp" if world > 1 else "none"
    return [sys.executable, "-W", "ignore", *several, str(RANKS_DRIVER), str(folder), kind, str(world), str(STEPS)]


def ranks_to_end(folder, world):
    """Run to the end; the step that it began from, and the weights."""
    process = subprocess.run(of_ranks(folder, world), capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr[-3000:]
    (line,) = [text for text in process.stdout.splitlines() if text.startswith("{")]
    return json.loads(line)["first"], torch.load(folder / "weights.pt", weights_only=True)


def kill_all(process):
    """The launcher and every rank at once."""
    everyone = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for one in everyone:
        one.kill()
    process.wait()
    psutil.wait_procs(everyone)


def kill_two_ranks(folder, chance):
    """Whether a run of two processes was killed, at a random moment from when a random one of its saves began."""
    saves = chance.randint(1, STEPS // 2)
    process = subprocess.Popen(of_ranks(folder, 2), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and len(list(folder.glob("*"))) < saves:
        time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.08))
    if process.poll() is not None:
        return False
    kill_all(process)
    return True


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_kills_and_then_another_number_of_processes(tmp_path):
    """Two ranks, killed while they save, go on as one or as two. One process adds gradients in another order than two,
    so what it must end with, to the bit, is what it makes of the same checkpoint of a run that nobody killed."""
    whole = tmp_path / "whole"
    whole.mkdir()
    _, of_two = ranks_to_end(whole, 2)
    expected = {(step, 2): of_two for step in range(0, STEPS + 1, 2)} | {(STEPS, 1): of_two}
    for step in range(0, STEPS, 2):
        shutil.copytree(whole, tmp_path / f"from{step}")
        for path in (tmp_path / f"from{step}").glob("step-*"):
            if int(path.name.removeprefix("step-")) > step:
                shutil.rmtree(path)
        first, expected[step, 1] = ranks_to_end(tmp_path / f"from{step}", 1)
        assert first == step
    chance, kills, places = random.Random(7), 0, set()
    for number in range(100):
        folder = tmp_path / f"killed{number}"
        folder.mkdir()
        if not kill_two_ranks(folder, chance):
            continue
        kills += 1
        world = 1 + kills % 2
        first, weights = ranks_to_end(folder, world)
        places.add(first)
        same = all(torch.equal(weights[name], value) for name, value in expected[first, world].items())
        assert same, f"killed run {number} went on from step {first} in {world} processes"
        if kills == 20:
            break
    assert kills == 20
    assert len(places) > 1, "killed at several places"
