"""`forerun serve` and `forerun monitor` as a user types them, on a run whose export is there."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests

from forerun.hardware.detect import detect_cpu
from forerun.ledger.store import open_ledger
from forerun.recipes.code_detector.data.test_training_data import corpus, settings
from forerun.recipes.code_detector.recipe import load_experiment
from forerun.runs.export import export_run
from forerun.runs.run import enter_run, start_training

FILE = {"code": "def f(x):\n    return x + 1\n" * 20, "language": "python"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The environment and the id of an exported run."""
    folder = tmp_path_factory.mktemp("served")
    url = f"sqlite:///{folder}/ledger.sqlite"
    experiment = load_experiment(
        settings(schedule={"epochs": 1, "max_steps": 2}, checkpoints={"every_steps": 2, "keep_last": 1}), corpus(2400)
    )
    device = detect_cpu().device
    with open_ledger(url) as ledger:
        run_id = enter_run(experiment.settings, device, ledger, folder)
    training = start_training(experiment, device, folder / run_id)
    for _ in training.steps():
        pass
    export_run(run_id, experiment, device, folder / run_id, folder / run_id / "export", merge=False)
    return {**os.environ, "FORERUN_LEDGER": url, "OMP_NUM_THREADS": "1"}, run_id


def forerun(environment, *words, folder=None):
    command = [sys.executable, "-m", "forerun", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=folder)


@contextlib.contextmanager
def served(environment, run_id, *words):
    """The address of the service's API, its headers, and a list that gets its stderr when it has ended."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "forerun", "serve", run_id, "--port", str(port), "--keep-code", *words]
    process = subprocess.Popen(
        command, env={**environment, "FORERUN_SERVE_TOKEN": "t"}, stderr=subprocess.PIPE, text=True
    )
    headers, address, error_output = {"Authorization": "Bearer t"}, f"http://127.0.0.1:{port}/v1", []
    try:
        for _ in range(600):
            try:
                if requests.get(f"{address}/status", headers=headers, timeout=5).status_code == 200:
                    break
            except requests.ConnectionError:
                assert process.poll() is None, "it has ended"
                time.sleep(0.1)
        yield address, headers, error_output
    finally:
        process.terminate()
        error_output.append(process.communicate(timeout=30)[1])


@pytest.fixture(scope="module")
def embedding(run, tmp_path_factory):
    """A folder that `forerun embed` made."""
    folder = tmp_path_factory.mktemp("embedding")
    rows = [
        {"code": f"def {name}{n}(x):\n    return x + {n}\n" * 9, "language": "python", "task": name, "split": split}
        for split, names in (("train", "abc"), ("val", "def"))
        for name in names
        for n in range(3)
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ("embed", "--data", str(folder / "rows.jsonl"), "--to", str(folder / "made"), "--epochs", "1", "--json")
    embed_run = forerun(run[0], *words)
    assert embed_run.returncode == 0, embed_run.stderr
    assert json.loads(embed_run.stdout)["tasks"] == 3
    assert forerun(run[0], *words).returncode == 2  # it is there
    return str(folder / "made")


@pytest.mark.medium
def test_files_are_compared_on_the_command_line(run, embedding, tmp_path):
    for name, code in (("one", FILE["code"]), ("two", FILE["code"].replace("x", "y")), ("three", "import os\n" * 30)):
        (tmp_path / f"{name}.py").write_text(code)
    words = ("similar", str(tmp_path), "--embedding", embedding, "--query", str(tmp_path / "one.py"))
    document = json.loads(forerun(run[0], *words, "--json").stdout)
    assert (document["schema"], document["files"], document["pairs"]) == ("forerun.similar/1", 3, 3)
    assert {document["nearest"][0]["a"], document["nearest"][0]["b"]} == {"one.py", "two.py"}
    assert document["best"][0]["comparison"]["syntax"]["score"] == 1
    assert all("one.py" in (p["comparison"]["a"], p["comparison"]["b"]) for p in document["best"])
    assert "Nearest by the embedding" in forerun(run[0], *words).stdout
    refused = forerun(run[0], "similar", str(tmp_path / "one.txt"))
    assert (refused.returncode, "Traceback" in refused.stderr) == (2, False)


RETRAINED = """
name: retrained
workload: code-detector
model: {{name: code-encoder, config: {config}}}
batch: {{micro_batch_size: 16, sequence_length: 64, padding: bucketed}}
data: {{examples: 400}}
optimizer: {{name: adamw, learning_rate: 0.002}}
schedule: {{epochs: 1, max_steps: 20, warmup_steps: 2}}
checkpoints: {{every_steps: 20, keep_last: 1}}
recipe: {{start: {start}, edge_cases: {edge}}}
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_the_service_got_wrong_is_learned_and_the_new_model_put_beside_the_old(run, embedding, tmp_path):
    environment, run_id = run
    with served(environment, run_id, "--embedding", embedding) as (address, headers, _):
        for n in range(12):
            file = {"code": f"def g{n}(value):\n\treturn value * {n}\n" * (5 + n), "language": "python"}
            answer = requests.post(f"{address}/detect", json=file, headers=headers, timeout=30).json()
            outcome = "refuted" if answer["verdict"] == "worth-a-conversation" else "confirmed"
            body = {"prediction_id": answer["prediction_id"], "outcome": outcome}
            assert requests.post(f"{address}/feedback", json=body, headers=headers, timeout=5).status_code == 200
    edge = tmp_path / "edge.jsonl"
    document = json.loads(forerun(environment, "monitor", run_id, "--edge-cases", str(edge), "--json").stdout)
    assert document["written"] == len(edge.read_text().splitlines()) == 12
    assert (
        document["releases"][0]["checked"] == document["releases"][0]["wrong_flags"] + document["releases"][0]["missed"]
    )
    url = environment["FORERUN_LEDGER"]
    with open_ledger(url) as ledger:
        row = ledger.run(run_id)
    settings_file = tmp_path / "retrained.yaml"
    export = Path(row.folder) / row.id / "export"
    settings_file.write_text(
        RETRAINED.format(config=json.dumps(row.settings["model"]["config"]), start=export, edge=edge)
    )
    trained = forerun(environment, "train", str(settings_file), folder=tmp_path)
    assert trained.returncode == 0, trained.stderr
    with open_ledger(url) as ledger:
        new = ledger.run("last").id
    assert new != run_id
    beside = forerun(environment, "monitor", run_id, "--against", new, "--json")
    assert beside.returncode == 0, beside.stderr
    figures = json.loads(beside.stdout)["against"]
    assert figures["kept_checked"] == figures["kept"] == 12
    assert figures["old_kept_wrong"] >= 1
    assert figures["changed"] > 0 or figures["auc_difference"] != 0  # they are two models
    decision = figures["auc_difference_high"] >= 0 and figures["new_fpr"] <= figures["old_fpr"]
    assert figures["promotable"] == decision
    output = " ".join(forerun(environment, "monitor", run_id, "--against", new).stdout.split())
    assert ("is promotable" if decision else "is not promotable") in output
    day_deletion = json.loads(forerun(environment, "monitor", run_id, "--forget-before", "1", "--json").stdout)
    full_deletion = json.loads(forerun(environment, "monitor", run_id, "--forget-before", "0", "--json").stdout)
    assert (day_deletion["deleted"], full_deletion["deleted"], full_deletion["predictions"]) == (0, 12, 0)


@pytest.mark.slow
def test_a_run_is_served_and_watched(run, embedding):
    environment, run_id = run
    with served(environment, run_id, "--embedding", embedding) as (address, headers, err):
        assert requests.post(f"{address}/detect", json=FILE, timeout=5).status_code == 401
        answer = requests.post(f"{address}/detect", json=FILE, headers=headers, timeout=30).json()
        feedback = {"prediction_id": answer["prediction_id"], "outcome": "refuted"}
        assert requests.post(f"{address}/feedback", json=feedback, headers=headers, timeout=5).status_code == 200
        assert requests.get(f"{address}/status", headers=headers, timeout=5).json()["embedding"] == "rows.jsonl"
        body = {"query": FILE, "candidates": [FILE, FILE], "by": "embedding"}
        matches = requests.post(f"{address}/find-similar", json=body, headers=headers, timeout=30).json()["found"]
        assert [each["embedding"] for each in matches] == pytest.approx([1, 1], abs=1e-5)
    assert "no evidence against a person" in " ".join(err[0].split())
    watched = forerun(environment, "monitor", run_id, "--json")
    assert watched.returncode == 0, watched.stderr
    document = json.loads(watched.stdout)
    assert (document["schema"], document["predictions"], document["feedback"]) == ("forerun.monitor/1", 1, 1)
    assert "Drift against the validation files" in forerun(environment, "monitor", run_id).stdout
    deletion = json.loads(forerun(environment, "monitor", run_id, "--forget", answer["prediction_id"], "--json").stdout)
    assert (deletion["deleted"], deletion["predictions"]) == (1, 0)


def test_listening_to_others_wants_a_token():
    """The refusal comes before a run is looked for: nothing is loaded, no stored prediction is deleted for its age."""
    refused = forerun({**os.environ, "FORERUN_SERVE_TOKEN": ""}, "serve", "any", "--host", "0.0.0.0")
    assert refused.returncode == 2
    assert "FORERUN_SERVE_TOKEN" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_unknown_runs_are_bad_input(run):
    environment, _ = run
    for command in ("serve", "monitor"):
        refused = forerun(environment, command, "nothing")
        assert (refused.returncode, "Traceback" in refused.stderr) == (2, False)
