"""`forerun plan` from outside: the document, exit codes, the settings file, and errors in one paragraph."""

import json
from pathlib import Path

import pytest
import yaml

from command_driver import run_command as forerun
from forerun.plan import choose
from forerun.settings.load import settings_from

GPT2 = {
    "name": "small", "workload": "causal-lm", "model": {"name": "tiny-gpt2", "config": {"n_layer": 1}},
    "precision": "fp32", "data": {"examples": 6400}, "schedule": {"warmup_steps": 10},
    "batch": {"micro_batch_size": 1, "gradient_accumulation_steps": 4, "sequence_length": 64},
}  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with settings, and a search that tries little."""
    (tmp_path / "run.yaml").write_text(json.dumps(GPT2))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORERUN_LEDGER", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(choose.make_plan, "__kwdefaults__", {**choose.make_plan.__kwdefaults__, "seconds": 0.0})
    return tmp_path


def test_the_document_and_the_file_that_forecast_takes(here, monkeypatch, capfd):
    code, out, err = forerun(monkeypatch, capfd, "plan", "run.yaml", "--gpu", "t4", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["schema"] == "forerun.plan/1"
    assert document["forecast"]["schema"] == "forerun.forecast/1"
    assert "detail" not in document["forecast"]
    selection = settings_from(document["settings"])
    assert selection.global_batch_size == 4
    assert document["forecast"]["settings_hash"] == selection.hash
    assert {change["path"] for change in document["changes"]} >= {"batch.micro_batch_size"}
    plan_file = here / "small.plan.yaml"
    assert "small.plan.yaml" in err
    text = plan_file.read_text()
    assert text.startswith("# Written by: forerun plan run.yaml --gpu t4 --json\n# For t4: ")
    assert settings_from(yaml.safe_load(text)) == selection
    code, out, err = forerun(monkeypatch, capfd, "forecast", plan_file, "--gpu", "t4", "--json")
    assert code == 0, err
    forecast = json.loads(out)
    assert {name: value for name, value in forecast.items() if name != "detail"} == document["forecast"]


def test_tables_and_a_file_of_ones_own(here, monkeypatch, capfd):
    code, out, _ = forerun(monkeypatch, capfd, "plan", "run.yaml", "--gpu", "t4", "--write", "mine.yaml")
    assert code == 0
    assert all(words in out for words in ("Plan of small on t4", "Time, memory and cost", "micro_batch_size 1 → 4"))
    assert Path("mine.yaml").exists()
    code, _, err = forerun(monkeypatch, capfd, "plan", "run.yaml", "--gpu", "t4", "--write", "mine.yaml")
    assert code == 0
    assert "an earlier plan there was replaced" in err
    code, _, err = forerun(monkeypatch, capfd, "plan", "run.yaml", "--gpu", "t4", "--write", "run.yaml")
    assert code == 2
    assert "was not written by forerun plan" in err
    assert json.loads(Path("run.yaml").read_text()) == GPT2


def test_limits_that_cannot_be_kept_are_exit_3_with_the_document_and_no_file(here, monkeypatch, capfd):
    code, out, _ = forerun(monkeypatch, capfd, "plan", "run.yaml", "--gpu", "t4", "--deadline", "1s", "--json")
    document = json.loads(out)
    assert code == 3
    assert document["fits"]
    assert not document["meets_limits"]
    assert document["remedies"]
    assert not (here / "small.plan.yaml").exists()


def test_from_one_gpu_to_another(here, monkeypatch, capfd):
    options = ("--from", "t4", "--to", "a100-40gb")
    code, out, err = forerun(monkeypatch, capfd, "plan", "run.yaml", *options, "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["schema"] == "forerun.migration/1"
    assert (document["before"]["gpu"], document["after"]["gpu"]) == ("t4", "a100-40gb")
    rows = {row["what"]: row for row in document["rows"]}
    assert {"memory", "step, same settings", "run, each plan", "learning rate", "warm-up", "cost"} <= set(rows)
    assert rows["warm-up"]["before"] == rows["warm-up"]["after"] == "10 updates, 40 samples"
    assert "stays 4" in document["learning_rate_rule"]
    steps = [document[name]["forecast"]["run"]["seconds"]["expected"] for name in ("before", "after")]
    assert document["plan_speed_up"] == pytest.approx(steps[0] / steps[1])
    code, out, _ = forerun(monkeypatch, capfd, "plan", "run.yaml", *options)
    assert code == 0
    assert "What changes and why" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--allow", "everything"], ["--allow", "everything", "method", "global-batch"]),
        (["--deadline", "soon"], ["--deadline", "soon", "1h30m"]),
        (["--budget", "0"], ["--budget", "0", "Example"]),
        (["--gpu", "a100-41gb"], ["a100-41gb", "a100-40gb"]),
        (["--from", "t4"], ["--from", "--to", "--write"]),
        (["--gpu", "l4", "--from", "t4", "--to", "l4"], ["--gpu", "--from"]),
        (["--set", "batch.micro_batch=2"], ["micro_batch", "micro_batch_size"]),
    ],
)
def test_bad_input_is_one_paragraph_and_exit_2(here, monkeypatch, capfd, options, words):
    code, out, err = forerun(monkeypatch, capfd, "plan", "run.yaml", *options)
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    assert len(err.strip().split("\n\n")) == 1
    assert all(word in err for word in words)


def test_confirm_is_for_the_device_here_and_says_so_before_it_plans(here, monkeypatch, capfd):
    code, _, err = forerun(monkeypatch, capfd, "plan", "run.yaml", "--gpu", "t4", "--confirm")
    assert code == 2
    assert "found t4" in err
    code, _, err = forerun(monkeypatch, capfd, "plan", "run.yaml", "--from", "t4", "--to", "l4", "--confirm")
    assert code == 2
    assert "found --from and --to" in err


def test_a_job_needs_a_recipe_and_a_kind(here, monkeypatch, capfd):
    code, _, err = forerun(monkeypatch, capfd, "plan", "run.yaml", "--gpu", "t4", "--script", "slurm")
    assert code == 2
    assert "a job trains a recipe" in err
    code, _, err = forerun(monkeypatch, capfd, "plan", "arithmetic", "--script", "kubernetes")
    assert code == 2
    assert "slurm or skypilot" in err


def test_a_plan_of_a_recipe_becomes_a_slurm_script(here, monkeypatch, capfd):
    small = [part for option in ("recipe.max_digits=3", "recipe.starts=[1,2]", "recipe.per_cell=40", "recipe.test_per_cell=5")
             for part in ("--set", option)]  # fmt: skip
    code, out, err = forerun(monkeypatch, capfd, "plan", "arithmetic", *small, "--gpu", "t4", "--script", "slurm")
    assert code == 0, err
    assert out.startswith("#!/bin/bash\n# arithmetic on 1 x t4: ")
    assert out.endswith("srun forerun train arithmetic.plan.yaml\n")
    assert Path("arithmetic.plan.yaml").exists()


@pytest.mark.medium
def test_what_if_lines_are_in_the_document(here, monkeypatch, capfd):
    code, out, err = forerun(monkeypatch, capfd, "forecast", "run.yaml", "--gpu", "t4", "--what-if", "--json")
    assert code == 0, err
    lines = {line["change"]: line for line in json.loads(out)["what_if"]}
    assert lines["activation_checkpointing=blocks"]["time_ratio"] > 1
    code, out, _ = forerun(monkeypatch, capfd, "forecast", "run.yaml", "--gpu", "t4", "--what-if")
    assert code == 0
    slower = lines["activation_checkpointing=blocks"]["time_ratio"] - 1
    assert "What if" in out
    assert f"+{slower:.1%}".replace("%", " %") + " time" in out


def test_compare_shows_every_gpu_and_keeps_to_the_limits(here, monkeypatch, capfd):
    code, out, err = forerun(
        monkeypatch, capfd, "compare", "run.yaml", "--gpu", "t4,l4", "--price", "t4=0.01", "--json"
    )
    assert code == 0, err
    document = json.loads(out)
    assert document["schema"] == "forerun.gpus/1"
    assert document["cheapest"] == "t4"
    assert {row["gpu"]: row["price_per_hour"] for row in document["rows"]}["t4"] == 0.01
    code, out, _ = forerun(monkeypatch, capfd, "compare", "run.yaml", "--gpu", "t4,l4", "--deadline", "1s")
    assert code == 3
    assert "No GPU keeps the limits" in out
    code, _, err = forerun(monkeypatch, capfd, "compare", "run.yaml", "--gpu", "t4", "--price", "t4=free")
    assert code == 2
    assert "--price wants GPU=DOLLARS" in err
