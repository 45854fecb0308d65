"""`forerun verify --measured` from outside: settings and programs, the document, errors, and what `--keep` teaches."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from command_driver import run_command

SCRIPT = Path(__file__).parent / "scripts" / "cnn_saves.py"
SETTINGS = {
    "name": "m", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "precision": "bf16-mixed",
    "batch": {"micro_batch_size": 4, "sequence_length": 256}, "data": {"examples": 64},
}  # fmt: skip


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("FORERUN_LEDGER", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    monkeypatch.setenv("COLUMNS", "120")
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(SETTINGS))
    return path


@pytest.mark.medium
def test_a_measured_step_is_explained_and_kept(settings, monkeypatch, capfd):
    def forerun(*words):
        code, out, err = run_command(monkeypatch, capfd, *words)
        assert code == 0, err
        return json.loads(out)

    before = forerun("forecast", settings, "--json", "--gpu", "t4", "--set", "precision=fp16-mixed")
    expected = before["step"]["seconds"]["expected"]
    ask = (settings, "--gpu", "t4", "--set", "precision=fp16-mixed", "--json")
    miss = forerun("verify", *ask, "--measured", f"step={3 * expected:.6f}s,peak=1GiB", "--keep")
    assert miss["schema"] == "forerun.miss/1"
    assert miss["rows"][0]["relative_error"] == pytest.approx(1 / 3 - 1, abs=1e-3)
    assert miss["causes"] == sorted(miss["causes"], key=lambda cause: cause["distance"])
    assert miss["is_kept"]
    after = forerun("forecast", settings, "--json", "--gpu", "t4", "--set", "precision=fp16-mixed")
    assert 1.8 * expected < after["step"]["seconds"]["expected"] <= 3 * expected
    assert after["memory"] == before["memory"], "memory is not learned"
    assert any("Corrected by" in warning for warning in after["warnings"])


@pytest.mark.medium
def test_the_table_names_causes_and_their_settings(settings, monkeypatch, capfd):
    code, out, _ = run_command(monkeypatch, capfd, "verify", settings, "--measured", "peak=3GiB", "--gpu", "a100-40gb")
    assert code == 0
    assert "What would explain it" in out
    assert re.search(r"--set \w+", out)
    assert "–" in out, "no time was measured"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--measured", "step=1s", "--forecast", "out.json"), "both"),
        (("--measured", "step=1s", "--gpu", "t4,l4"), "of one GPU"),
        (("--measured", "peak=1GiB", "--keep"), "without step"),
        (("--measured", "step=1"), "unit"),
        (("--keep",), "no --measured"),
        (("--set", "seed=1"), "no --measured"),
    ],
)
def test_wrong_options_are_one_paragraph(settings, monkeypatch, capfd, words, says):
    code, out, err = run_command(monkeypatch, capfd, "verify", settings, *words)
    assert (code, out) == (2, "")
    assert says in " ".join(err.split())


@pytest.mark.medium
def test_a_program_learns_from_its_own_measured_step(settings, monkeypatch, capfd):
    """Its forecast is read from a file; the next `exec` of the same command is corrected."""

    def program():
        command = [sys.executable, "-m", "forerun", "exec", "--gpu", "t4", "--json", "--", "python", str(SCRIPT)]
        result = subprocess.run(command, capture_output=True, text=True, cwd=settings.parent, env=os.environ)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    before = program()
    expected = before["step"]["seconds"]["expected"]
    document = settings.parent / "out.json"
    document.write_text(json.dumps(before))
    words = ("--forecast", document, "--measured", f"step={2 * expected:.9f}s", "--keep", "--json")
    code, out, err = run_command(monkeypatch, capfd, "verify", *words)
    assert code == 0, err
    miss = json.loads(out)
    assert "cannot be forecast again" in miss["not_tried"]
    assert miss["causes"][0]["step_seconds"] > expected
    after = program()
    assert 1.4 * expected < after["step"]["seconds"]["expected"] <= 2 * expected
    assert sum(after["step"]["phases"].values()) == pytest.approx(after["step"]["seconds"]["expected"])
    phases, run = after["run"]["phases"], after["run"]["seconds"]
    assert sum(phases.values()) == pytest.approx(run["expected"])
    assert after["settings_hash"] == before["settings_hash"]
