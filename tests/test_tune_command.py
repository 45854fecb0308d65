"""`forerun tune` from outside: a small search to its end, killed and resumed, shared over PostgreSQL, refused."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from forerun.tune.study import close_study, open_study, same_trials

FORERUN = [sys.executable, "-c", "from forerun.cli.main import main; main()"]
SMALL = {
    "vocabulary_size": 300,
    "orders": 2,
    "buckets": 512,
    "ngram_width": 8,
    "width": 16,
    "feed_forward": 16,
    "heads": 2,
}


@pytest.fixture(scope="module")
def settings_file(tmp_path_factory):
    """A task that a small encoder learns in seconds."""
    folder = tmp_path_factory.mktemp("task")
    kinds = ["good fine warm", "bad dull cold"]
    rows = [
        {"text": f"{kinds[n % 2].split()[n % 3]} film {n % 17} {n // 17} story", "label": ["yes", "no"][n % 2]}
        for n in range(600)
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = {
        "name": "small", "workload": "text-classifier", "model": {"name": "text-encoder", "config": SMALL},
        "optimizer": {"learning_rate": 3e-3}, "data": {"source": str(folder / "rows.jsonl")},
        "batch": {"micro_batch_size": 16, "sequence_length": 32, "padding": "bucketed"}, "schedule": {"epochs": 2},
        "checkpoints": {"every_steps": 8, "keep_last": 1}, "evaluation": {"every_epochs": 1, "examples": 1},
        "recipe": {"vocabulary_size": 300},
    }  # fmt: skip
    (folder / "small.yaml").write_text(json.dumps(settings))
    return folder / "small.yaml"


def environment(folder: Path):
    return {
        **os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "FORERUN_LEDGER": f"sqlite:///{folder}/ledger.sqlite",
    }  # fmt: skip


def tune(settings, folder, *arguments, timeout=400):
    command = [*FORERUN, "tune", str(settings), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment(folder), timeout=timeout
    )  # fmt: skip


def trials_of(folder, name="one"):
    return trials_at(f"sqlite:///{folder}/runs/tune.sqlite", name)


def trials_at(url, name):
    study = open_study(url, name, None, None)
    trials = study.trials
    close_study(study)
    return trials


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_small_search_ends_with_a_tested_winner_and_its_command(settings_file, tmp_path):
    arguments = ["--study", "one", "--trials", "4", "--finalists", "2", "--starts", "2", "--json"]
    result = tune(settings_file, tmp_path, *arguments)
    assert result.returncode in (0, 4), result.stderr
    document = json.loads(result.stdout)
    lead, *_ = document["test"]["over_baselines"]["tf-idf"]
    assert result.returncode == (0 if lead > 0 else 4), "a tie with the best baseline is no success"
    assert document["schema"] == "forerun.tune/1"
    assert document["finished"] == 4
    assert all("price" in trial and "overrides" in trial for trial in document["trials"])
    assert all("recipe.judged_on=selection" in trial["overrides"] for trial in document["trials"])
    assert {"majority", "prior", "all-negative", "length", "tf-idf"} <= set(document["test"]["over_baselines"])
    assert [len(f["starts"]) for f in document["finalists"]] == [2, 2]
    page = (tmp_path / "runs" / "study-one" / "report.html").read_text()
    assert "luck alone" in page
    assert "Score against minutes" in page
    again = tune(settings_file, tmp_path, *arguments)
    assert json.loads(again.stdout)["test"] == document["test"], "the test rows are scored once"
    words = [word.strip("'") for word in document["reproduce"].split(" --set ")]
    sets = [part for word in words[1:] for part in ("--set", word)]
    run = subprocess.run(
        [*FORERUN, "run", str(settings_file), *sets, "--json"], capture_output=True, text=True, cwd=tmp_path,
        env=environment(tmp_path), timeout=200,
    )  # fmt: skip
    assert run.returncode in (0, 4), run.stderr
    metrics = json.loads(run.stdout)["measurement"]["metrics"]
    assert metrics["macro_f1"] == document["test"]["metrics"]["macro_f1"], "the command gives the winner itself"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_three_times_it_ends_with_the_trials_of_a_search_that_ran_through(settings_file, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    arguments = ["--study", "one", "--trials", "4", "--finalists", "0"]
    for folder in (whole, killed):
        folder.mkdir()
    assert tune(settings_file, whole, *arguments).returncode == 0
    command = [*FORERUN, "tune", str(settings_file), *arguments]
    for after in (1, 2, 3):  # in the middle of a trial, each time another one
        worker = subprocess.Popen(
            command, cwd=killed, env=environment(killed), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )  # fmt: skip
        wait_until_trial_runs(killed, number=after)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    assert tune(settings_file, killed, *arguments).returncode == 0
    assert same_trials(trials_of(whole), trials_of(killed))
    assert len(trials_of(killed)) == 4


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_trial_over_folds_is_a_run_for_each_and_their_mean(settings_file, tmp_path):
    arguments = ["--study", "one", "--trials", "2", "--finalists", "0", "--set", "recipe.folds=2", "--json"]
    result = tune(settings_file, tmp_path, *arguments)
    assert result.returncode == 0, result.stderr
    for trial in trials_of(tmp_path):
        assert sorted(trial.user_attrs["runs"]) == ["0", "1"]
        assert max(trial.intermediate_values) == 2 * max(1, max(trial.intermediate_values) // 2)
    changed = tune(settings_file, tmp_path, *arguments[:-3], "--set", "recipe.folds=3")
    assert changed.returncode == 2
    assert "folds (was 2)" in " ".join(changed.stderr.split())


def wait_until_trial_runs(folder: Path, number: int) -> None:
    until = time.time() + 200
    while time.time() < until:
        if (folder / "runs" / "tune.sqlite").exists():
            try:
                trials = trials_of(folder)
            except ValueError:  # the tables are just being made
                trials = []
            if len(trials) > number and "process" in trials[number].user_attrs:
                time.sleep(4)  # into its imports or its steps
                return
        time.sleep(0.2)
    raise AssertionError("the trial did not start")


@pytest.fixture
def postgres():
    """A PostgreSQL server of its own, which must not run as root; its URL."""
    if shutil.which("initdb") is None or shutil.which("pg_ctl") is None:
        pytest.skip("needs PostgreSQL's initdb and pg_ctl on the path")
    pytest.importorskip("psycopg", reason="needs the extra postgres")
    folder = Path(tempfile.mkdtemp(prefix="forerun-postgres-"))
    user = {"user": "nobody"} if os.geteuid() == 0 else {}
    if user:
        shutil.chown(folder, "nobody")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = folder / "data"
    quiet = {"cwd": folder, "check": True, "capture_output": True, **user}
    subprocess.run(["initdb", "-D", data, "-U", "forerun", "-A", "trust", "--no-sync"], **quiet)
    options = f"-p {port} -c listen_addresses=127.0.0.1 -k {folder}"
    log = folder / "log"
    subprocess.run(
        ["pg_ctl", "-D", data, "-o", options, "-l", log, "-w", "start"], cwd=folder, check=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **user,
    )  # fmt: skip
    yield f"postgresql+psycopg://forerun@127.0.0.1:{port}/postgres"
    subprocess.run(["pg_ctl", "-D", data, "-m", "immediate", "stop"], **quiet)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_workers_share_a_study_over_postgresql(settings_file, tmp_path, postgres):
    arguments = ["--study", "shared", "--trials", "6", "--finalists", "0", "--storage", postgres]
    command = [*FORERUN, "tune", str(settings_file), *arguments]
    folders = [tmp_path / "one", tmp_path / "two"]
    workers = []
    for folder in folders:
        folder.mkdir()
        workers.append(
            subprocess.Popen(command, cwd=folder, env=environment(folder), stderr=subprocess.PIPE, text=True,
                             stdout=subprocess.DEVNULL)
        )  # fmt: skip
    errors = [worker.communicate(timeout=400)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], errors
    trials = trials_at(postgres, "shared")
    assert len(trials) == 6
    assert all(t.state.is_finished() for t in trials)
    assert len({t.user_attrs["owner"]["pid"] for t in trials}) == 2, "both worked"
    assert len({json.dumps(t.params, sort_keys=True) for t in trials}) == 6


def run_in_process(*arguments):
    from forerun.cli.main import main

    before = sys.argv
    sys.argv = ["forerun", *map(str, arguments)]
    try:
        with pytest.raises(SystemExit) as stop:
            main()
    finally:
        sys.argv = before
    return stop.value.code


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["okadfa"], ["tune needs a recipe", "text-classifier"]),
        (["text-classifier", "--budget", "5"], ["--price"]),
        (["text-classifier", "--deadline", "soon"], ["--deadline"]),
        (["text-classifier", "--storage", "nothing://x"], ["--storage", "sqlite:///"]),
        (["text-classifier", "--set", "recipe.los=focal"], ["recipe.los", "loss"]),
    ],
)
def test_bad_input_is_exit_2(arguments, words, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORERUN_LEDGER", f"sqlite:///{tmp_path}/ledger.sqlite")
    assert run_in_process("tune", *arguments) == 2
    message = " ".join(capfd.readouterr().err.split())
    assert all(word in message for word in words), message
