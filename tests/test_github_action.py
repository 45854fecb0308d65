"""The workflow file that users copy: it is a workflow, its commands exist, and its summary reads our documents."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOW = yaml.safe_load((ROOT / "docs" / "github-action.yml").read_text())
STEPS = {step.get("name", step.get("uses")): step for step in WORKFLOW["jobs"]["fits"]["steps"]}


def test_it_runs_on_pull_requests_with_read_access_only():
    assert "pull_request" in WORKFLOW[True]  # YAML 1.1 reads the key `on` as true
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert all("run" in step or "uses" in step for step in STEPS.values())


def test_its_options_are_those_of_the_command():
    words = shlex.split(STEPS["Forecast the training script"]["run"])
    options = {word for word in words[words.index("exec") : words.index("--")] if word.startswith("--")}
    assert options <= set(json.loads((ROOT / "tests" / "command_line.json").read_text())["exec"])
    assert STEPS["Tests on a virtual GPU"]["run"] == "pytest -m fits"


def one(gpu, fits, cost):
    return {
        "gpu": gpu, "fits": fits, "memory": {"device_bytes": {"expected": 2**31}, "capacity_bytes": 2**34},
        "step": {"seconds": {"expected": 0.012}}, "run": {"cost": cost},
        "findings": [{"kind": "grows", "line": "train.py:9", "text": "Memory grows."}],
    }  # fmt: skip


@pytest.mark.parametrize("several", [False, True])
def test_the_summary_reads_one_forecast_and_several(tmp_path, several):
    (tmp_path / "forecast").mkdir()
    document = {"forecasts": [one("t4", False, None), one("a10", True, 1.5)]} if several else one("t4", False, None)
    (tmp_path / "forecast" / "forecast.json").write_text(json.dumps(document))
    environment = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-X", "utf8", "-c", STEPS["Summary"]["run"]]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    summary = (tmp_path / "summary.md").read_text()
    assert "| t4 | **no** | 2.00 GiB | 16.0 GiB | 12.0 ms | – |" in summary
    assert ("| a10 | yes |" in summary) == several
    assert "- grows at train.py:9: Memory grows." in summary
