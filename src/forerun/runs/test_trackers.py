"""Every tracker gets the same figures; the file is there whatever else is."""

import contextlib
import json
import sys
import types

import pytest

from forerun.errors import InvalidSettings, MissingExtra
from forerun.records import StepPhases, StepReport
from forerun.runs.trackers import TRACKERS, TrackerWarning, figures, tracking

REPORT = StepReport(
    step=3, epoch=0.5, loss=1.25, learning_rate=1e-3, step_seconds=0.5, phases=StepPhases(data_seconds=0.05), samples=8,
    tokens=600, padded_tokens=800, gradient_norm=2.0, details={"task_loss": 4.0},
)  # fmt: skip


def fake(calls):
    """A library that looks like each of them; writes down what it hears."""

    class Writer:
        def __init__(self, folder):
            calls.append(("folder", folder))

        def add_scalar(self, name, value, step):
            calls.append((name, value, step))

        def close(self):
            calls.append("closed")

    def log_metrics(values, step):
        calls.extend((name, value, step) for name, value in values.items())

    run = types.SimpleNamespace(log=log_metrics, finish=lambda: calls.append("closed"))
    run.log = lambda values, step: log_metrics(values, step)
    return types.SimpleNamespace(
        SummaryWriter=Writer, init=lambda **keywords: run, start_run=lambda run_name: contextlib.nullcontext(),
        log_metrics=log_metrics, log=lambda values, step: log_metrics(values, step), finish=lambda: calls.append("closed"),
    )  # fmt: skip


@pytest.mark.parametrize("name", sorted(TRACKERS))
def test_each_tracker_gets_every_figure(name, tmp_path, monkeypatch):
    calls = []
    for module, _ in TRACKERS.values():
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, TRACKERS[name][0], fake(calls))
    with tracking(tmp_path, "run-1", [name]) as take:
        take(REPORT)
    assert {(key, value, 3) for key, value in figures(REPORT).items()} <= set(calls)


def test_the_forecast_stands_beside_each_step_and_what_was_measured_at_the_end(tmp_path, monkeypatch):
    calls = []
    for module, _ in TRACKERS.values():
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, TRACKERS["trackio"][0], fake(calls))
    step = types.SimpleNamespace(model_flops=1.0, mfu=None, seconds=types.SimpleNamespace(expected=0.4))
    forecast = types.SimpleNamespace(
        step=step, detail=types.SimpleNamespace(padded_tokens_per_step=None),
        memory=types.SimpleNamespace(peak_allocated_bytes=90),
    )  # fmt: skip
    measurement = types.SimpleNamespace(
        memory=types.SimpleNamespace(peak_allocated_bytes=100), metrics={"macro_f1": 0.5}
    )
    with tracking(tmp_path, "run-1", ["trackio"], forecast) as take:
        take(REPORT)
        assert {("forecast_step_seconds", 0.4, 3), ("forecast_peak_allocated_bytes", 90.0, 3)} <= set(calls)
        assert not {"peak_allocated_bytes", "macro_f1"} & {name for name, *_ in calls}
        take.end(measurement)
    assert {("peak_allocated_bytes", 100.0, 3), ("macro_f1", 0.5, 3)} <= set(calls[:-1])
    (line,) = (tmp_path / "steps.jsonl").read_text().splitlines()
    assert "forecast_step_seconds" not in json.loads(line)


def test_the_file_is_written_as_the_run_goes(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with tracking(tmp_path / "run", "run-1") as take:
        take(REPORT)
        (line,) = (tmp_path / "run" / "steps.jsonl").read_text().splitlines()
    content = json.loads(line)
    assert (content["step"], content["loss"], content["padding_share"], content["data_wait_share"]) == (
        3,
        1.25,
        0.25,
        0.1,
    )
    assert content["task_loss"] == 4.0


def test_what_is_not_there_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match="pip install wandb"), tracking(tmp_path, "r", ["wandb"]):
        pass
    with pytest.raises(InvalidSettings, match="tensorboard, wandb"), tracking(tmp_path, "r", ["comet"]):
        pass


def test_what_is_no_number_is_null_in_the_file(tmp_path):
    with tracking(tmp_path, "run-1") as take:
        take(REPORT.model_copy(update={"loss": float("nan"), "gradient_norm": float("inf")}))
    (line,) = (tmp_path / "steps.jsonl").read_text().splitlines()
    content = json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert content["loss"] is content["gradient_norm"] is None


def test_a_full_disk_ends_the_file_and_not_the_run(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with tracking(tmp_path, "run-1") as take:
        take(REPORT)
        (tmp_path / "steps.jsonl").unlink()
        (tmp_path / "steps.jsonl").mkdir()  # as good as full: it cannot be appended to
        with pytest.warns(TrackerWarning, match=r"steps\.jsonl .*ends at step 2.*goes on"):
            take(REPORT)
        take(REPORT)


def test_trackers_are_asked_for_before_anything_is_done(monkeypatch, capfd, tmp_path):
    from forerun.cli.main import main

    monkeypatch.setenv("FORERUN_LEDGER", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    for command in (["run"], ["train"], ["train", "--nproc", "2"]):
        monkeypatch.setattr(sys, "argv", ["forerun", *command, "code-detector", "--log", "mlflow"])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 2
        assert "pip install mlflow" in capfd.readouterr().err
    assert not (tmp_path / "ledger.sqlite").exists()


def test_what_the_gpu_did_and_mfu_are_figures_where_they_are_known():
    measured = REPORT.model_copy(update={"gpu_busy_share": 0.9, "gpu_clock_share": 0.8, "peak_allocated_bytes": 7})
    step = types.SimpleNamespace(model_flops=1000.0, mfu=0.5, seconds=types.SimpleNamespace(expected=1.0))
    forecast = types.SimpleNamespace(step=step, detail=types.SimpleNamespace(padded_tokens_per_step=400.0))
    values = figures(measured, forecast)
    assert (values["gpu_busy_share"], values["gpu_clock_share"], values["peak_allocated_bytes"]) == (0.9, 0.8, 7)
    assert values["mfu"] == 2.0, "the peak is 2000 FLOP/s; this step did 2000 FLOP in half a second"
    assert "mfu" not in figures(measured)
    assert "gpu_busy_share" not in figures(REPORT)
