"""The command line from outside: the contract's keys, sums, exit codes and errors, and a small run to its verdict."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forerun import api as forerun_api
from forerun.errors import FilesNotWritten
from forerun.runs.local import run_locally

FORERUN = [sys.executable, "-c", "from forerun.cli.main import main; main()"]
BERT = {
    "name": "c1", "workload": "sequence-classification", "model": {"name": "tiny-bert"}, "precision": "bf16-mixed",
    "batch": {"micro_batch_size": 16, "gradient_accumulation_steps": 2, "sequence_length": 128},
    "data": {"examples": 3200}, "schedule": {"epochs": 2},
}  # fmt: skip
PARTS = {f"{part}_bytes" for part in ("parameter", "gradient", "optimizer_state", "activation", "temporary", "other")}


def forerun(*arguments, folder=None, **environment):
    env = {**os.environ, "COLUMNS": "100", **environment}
    return subprocess.run(
        [*FORERUN, *map(str, arguments)], capture_output=True, text=True, cwd=folder, env=env, timeout=280
    )


def settings_file(folder: Path, content) -> Path:
    path = folder / "settings.yaml"
    path.write_text(json.dumps(content))
    return path


def test_help_waits_for_no_library():
    """`--help` and completion pay for every module that is loaded; torch alone is more than a second."""
    slow = ["torch", "transformers", "numpy", "pandas", "sklearn", "optuna", "sqlalchemy", "pydantic", "rich", "yaml"]
    code = f"import sys, forerun.cli.main\nprint([name for name in {slow!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")


def test_forecast_json_keeps_the_contract(tmp_path):
    result = forerun("forecast", settings_file(tmp_path, BERT), "--gpu", "a100-40gb", "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    memory, step, run = document["memory"], document["step"], document["run"]
    assert document["schema"] == "forerun.forecast/1"
    assert set(memory["breakdown"]) == PARTS
    assert sum(memory["breakdown"].values()) == memory["peak_allocated_bytes"]
    assert memory["peak_allocated_bytes"] <= memory["peak_reserved_bytes"] <= memory["device_bytes"]["conservative"]
    for band in (memory["device_bytes"], step["seconds"], run["seconds"]):
        assert 0 < band["optimistic"] <= band["expected"] <= band["conservative"]
    assert run["total_steps"] == 200
    assert sum(run["phases"].values()) == pytest.approx(run["seconds"]["expected"])
    assert sum(step["phases"].values()) == pytest.approx(step["seconds"]["expected"])
    assert 0 < step["mfu"] < 1


@pytest.mark.medium
def test_too_large_is_exit_3_with_the_document(tmp_path):
    big = {**BERT, "workload": "causal-lm", "model": {"name": "gpt2-xl"}, "precision": "fp32"}
    result = forerun("forecast", settings_file(tmp_path, big), "--gpu", "t4", "--json")
    assert result.returncode == 3
    assert json.loads(result.stdout)["fits"] is False


@pytest.mark.medium
def test_several_gpus_side_by_side(tmp_path):
    path = settings_file(tmp_path, BERT)
    result = forerun("forecast", path, "--gpu", "a100-40gb,l4", "--gpu", "h100-80gb")
    assert result.returncode == 0, result.stderr
    assert all(name in result.stdout for name in ("a100-40gb", "l4", "h100-80gb"))


@pytest.mark.parametrize(
    ("gpu", "change", "words"),
    [
        ("a100-41gb", {}, ["a100-41gb", "a100-40gb"]),
        ("a100-40gb", {"btach": {}}, ["btach", "batch"]),
        ("a100-40gb", {"batch": {"micro_batch_size": -1}}, ["micro_batch_size", "-1"]),
        ("a100-40gb", {"model": {"name": "bert-bse"}}, ["bert-bse", "bert-base-uncased"]),
        ("a100-40gb", {"workload": "causal-lm"}, ["causal-lm", "sequence-classification"]),
        ("a100-40gb", {"workload": "nothing"}, ["nothing", "code-detector"]),
        ("a100-40gb", {"batch": {"sequence_length": 4096}}, ["sequence_length", "128"]),
        ("a100-40gb", {"data": {"examples": 4}}, ["micro_batch_size", "4 or less"]),
        ("a100-40gb", {"data": {}}, ["data.examples", "max_steps"]),
        ("t4", {}, ["bf16-mixed", "t4", "fp16-mixed"]),
        ("v100-16gb", {"precision": "tf32"}, ["tf32"]),
        (
            "a100-40gb",
            {"compile": "default", "parallel": {"kind": "fsdp", "world_size": 2}},
            ["compile_unit", "blocks"],
        ),
        ("a100-40gb", {"optimizer": {"name": "lion", "implementation": "fused"}}, ["lion", "auto"]),
        (
            "a100-40gb",
            {"model": {"name": "tiny-bert", "config": {"hidden": 1}}},
            ["model.config.hidden", "hidden_size"],
        ),
    ],
)
def test_bad_input_is_one_paragraph_and_exit_2(tmp_path, capfd, gpu, change, words):
    """In this process, since starting one for each case would take half a minute; the next test uses a real one."""
    from forerun.cli.main import main

    before = sys.argv
    sys.argv = ["forerun", "forecast", str(settings_file(tmp_path, {**BERT, **change})), "--gpu", gpu, "--json"]
    try:
        with pytest.raises(SystemExit) as stop:
            main()
    finally:
        sys.argv = before
    message = " ".join(capfd.readouterr().err.split())
    assert stop.value.code == 2
    assert "Traceback" not in message
    for word in words:
        assert word in message


def test_bad_input_from_a_real_process(tmp_path):
    result = forerun("forecast", tmp_path / "none.yaml", "--json")
    assert (result.returncode, result.stdout) == (2, "")
    assert "none.yaml" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("command", "schema"), [("gpus", "gpus"), ("doctor", "doctor"), ("recipes", "recipes"), ("runs", "runs")]
)
def test_json_documents(tmp_path, command, schema):
    result = forerun(command, "--json", folder=tmp_path, FORERUN_LEDGER=f"sqlite:///{tmp_path}/ledger.sqlite")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["schema"] == f"forerun.{schema}/1"
    assert forerun(command, folder=tmp_path, FORERUN_LEDGER=f"sqlite:///{tmp_path}/ledger.sqlite").stdout


@pytest.mark.medium
def test_copy_gives_a_file_and_never_overwrites(tmp_path):
    assert forerun("copy", "code-detector", folder=tmp_path).returncode == 0
    assert "SETTINGS" in (tmp_path / "code_detector.py").read_text()
    again = forerun("copy", "code-detector", folder=tmp_path)
    assert again.returncode == 2
    assert "--to" in again.stderr


SMALL_ADDITION = (
    "recipe.max_digits=2", "recipe.starts=[1,2]", "recipe.per_cell=64", "recipe.test_per_cell=6",
    "recipe.scored_rows=40", "batch.micro_batch_size=32", "schedule.max_steps=6",
)  # fmt: skip
SMALL_DETECTOR = ("schedule.max_steps=6", "data.examples=256", "batch.micro_batch_size=16")


@pytest.mark.parametrize(
    ("recipe", "small"),
    [
        pytest.param("arithmetic", SMALL_ADDITION, marks=pytest.mark.medium),
        pytest.param("code-detector", SMALL_DETECTOR, marks=pytest.mark.slow),
    ],
)
def test_a_small_run_ends_in_a_verdict_and_a_page(recipe, small, tmp_path):
    """A few steps on few samples: everything but the scores is as in the full run, so the criteria on scores fail."""
    ledger = {"FORERUN_LEDGER": f"sqlite:///{tmp_path}/ledger.sqlite"}
    options = [word for setting in small for word in ("--set", setting)]
    result = forerun("run", recipe, *options, "--json", folder=tmp_path, **ledger)
    assert result.returncode == 4, result.stderr
    document = json.loads(result.stdout)
    assert document["forecast"]["run"]["total_steps"] == document["measurement"]["run"]["total_steps"] == 6
    assert document["verdict"]["passed"] is False
    run_id = document["run_id"]
    page = tmp_path / "runs" / run_id / "report.html"
    assert "criteria failed" in page.read_text()
    verified = forerun("verify", run_id[:-1], "--json", folder=tmp_path, **ledger)
    assert verified.returncode == 4
    assert json.loads(verified.stdout)["rows"] == document["verdict"]["rows"]
    listed = json.loads(forerun("runs", "--json", folder=tmp_path, **ledger).stdout)["runs"]
    assert [(row["id"], row["state"]) for row in listed] == [(run_id, "verified")]
    finished = forerun("run", recipe, *options, "--resume", run_id, folder=tmp_path, **ledger)
    assert finished.returncode == 2
    assert "nothing to resume" in " ".join(finished.stderr.split())


def test_a_folder_without_room_for_runs_is_said_before_anything_is_done(tmp_path, monkeypatch):
    """Nothing of the recipe is looked at, and no ledger is made."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("a file where the folder would be")
    nothing: Any = None
    with pytest.raises(FilesNotWritten, match=r"runs, which cannot be written.*another folder"):
        run_locally(nothing, f"sqlite:///{tmp_path}/ledger.sqlite")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sweep_forecasts_all_runs_each_and_compares(tmp_path):
    ledger = {"FORERUN_LEDGER": f"sqlite:///{tmp_path}/ledger.sqlite"}
    small = ["--set", "schedule.max_steps=3", "--set", "data.examples=128", "--set", "batch.micro_batch_size=16,32"]
    result = forerun("sweep", "code-detector", *small, "--json", folder=tmp_path, **ledger)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert [v["name"] for v in document["variants"]] == ["micro_batch_size=16", "micro_batch_size=32"]
    assert {v["state"] for v in document["variants"]} == {"finished"}
    (table,) = (t for t in document["tables"] if t["title"] == "Forecast beside measured")
    assert len(table["rows"]) == 2
    assert "still to run" in result.stderr.lower()
    (page,) = tmp_path.glob("runs/sweep-*/report.html")
    assert "micro_batch_size=32" in page.read_text()
    again = forerun("sweep", "code-detector", *small, "--resume", "--json", folder=tmp_path, **ledger)
    assert again.returncode == 0, again.stderr
    ids = [[v["run_id"] for v in json.loads(text)["variants"]] for text in (result.stdout, again.stdout)]
    assert ids[0] == ids[1], "finished runs are taken as they are"


def test_a_sweep_of_nothing_is_refused(tmp_path):
    result = forerun("sweep", "text-classifier", "--set", "seed=1", folder=tmp_path)
    assert result.returncode == 2
    assert "several values" in result.stderr


def test_profiles_are_targets_listed_and_copied(tmp_path):
    """Settings files beside the recipes; each must be valid settings of a recipe that ships."""
    from forerun.runs.registry import profiles, recipe_names, target_names

    assert "arithmetic-full" in profiles()
    for name in profiles():
        assert forerun_api.resolve(name).workload in recipe_names()
        assert name in target_names()
    listed = json.loads(forerun("recipes", "--json").stdout)
    assert [p["name"] for p in listed["profiles"]] == list(profiles())
    copied = forerun("copy", "arithmetic-full", folder=tmp_path)
    assert "forerun forecast arithmetic_full.yaml" in copied.stdout
    assert forerun_api.resolve(tmp_path / "arithmetic_full.yaml") == forerun_api.resolve("arithmetic-full")
