"""`forerun serve` and `forerun monitor` as a user types them, on a run whose export is there."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest
import requests

from forerun.hardware.detect import detect_cpu
from forerun.ledger.store import open_ledger
from forerun.recipes.code_detector import open_recipe
from forerun.recipes.exporting import export_run
from forerun.recipes.flow import enter_run, start_training
from forerun.recipes.test_code_detector_data import corpus, settings

FILE = {"code": "def f(x):\n    return x + 1\n" * 20, "language": "python"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The environment and the id of an exported run."""
    folder = tmp_path_factory.mktemp("served")
    url = f"sqlite:///{folder}/ledger.sqlite"
    opened = open_recipe(
        settings(schedule={"epochs": 1, "max_steps": 2}, checkpoints={"every_steps": 2, "keep_last": 1}), corpus(2400)
    )
    device = detect_cpu().device
    with open_ledger(url) as ledger:
        run_id = enter_run(opened.settings, device, ledger, folder)
    training = start_training(opened, device, folder / run_id)
    for _ in training.steps():
        pass
    export_run(run_id, opened, device, folder / run_id, folder / run_id / "export", merge=False)
    return {**os.environ, "FORERUN_LEDGER": url, "OMP_NUM_THREADS": "1"}, run_id


def forerun(environment, *words):
    command = [sys.executable, "-m", "forerun", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_a_run_is_served_and_watched(run, tmp_path):
    environment, run_id = run
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "forerun", "serve", run_id[:8], "--port", str(port), "--keep-code"]
    process = subprocess.Popen(
        command, env={**environment, "FORERUN_SERVE_TOKEN": "t"}, stderr=subprocess.PIPE, text=True
    )
    headers, address = {"Authorization": "Bearer t"}, f"http://127.0.0.1:{port}/v1"
    try:
        for _ in range(300):
            try:
                if requests.get(f"{address}/status", headers=headers, timeout=5).status_code == 200:
                    break
            except requests.ConnectionError:
                time.sleep(0.1)
        assert requests.post(f"{address}/detect", json=FILE, timeout=5).status_code == 401
        said = requests.post(f"{address}/detect", json=FILE, headers=headers, timeout=30).json()
        feedback = {"prediction_id": said["prediction_id"], "outcome": "refuted"}
        assert requests.post(f"{address}/feedback", json=feedback, headers=headers, timeout=5).status_code == 200
    finally:
        process.terminate()
        _, err = process.communicate(timeout=30)
    assert "no evidence against a person" in " ".join(err.split())
    watched = forerun(environment, "monitor", run_id, "--json")
    assert watched.returncode == 0, watched.stderr
    document = json.loads(watched.stdout)
    assert (document["schema"], document["predictions"], document["feedback"]) == ("forerun.monitor/1", 1, 1)
    assert "Drift against the validation files" in forerun(environment, "monitor", run_id).stdout
    gone = json.loads(forerun(environment, "monitor", run_id, "--forget", said["prediction_id"], "--json").stdout)
    assert (gone["deleted"], gone["predictions"]) == (1, 0)


def test_listening_to_others_wants_a_token(run):
    environment, run_id = run
    refused = forerun({**environment, "FORERUN_SERVE_TOKEN": ""}, "serve", run_id, "--host", "0.0.0.0", "--no-store")
    assert refused.returncode == 2
    assert "FORERUN_SERVE_TOKEN" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_unknown_runs_are_bad_input(run):
    environment, _ = run
    for command in ("serve", "monitor"):
        refused = forerun(environment, command, "nothing")
        assert (refused.returncode, "Traceback" in refused.stderr) == (2, False)
