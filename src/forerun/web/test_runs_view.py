"""Rows and axes are those of the runs, none more and none less."""

from forerun.records import Range
from forerun.runs.watching import RunView
from forerun.web import runs_view
from forerun.web.runs_view import beside, different_settings, scores, several_runs


def view(run_id, metrics, loss=0.5, left=None):
    return RunView(
        run_id=run_id, name="n", workload="w", gpu="cpu", state="started", step=3, total_steps=9, loss=loss,
        losses=[(3, loss)], tokens_per_second=1000.0, step_seconds=0.01, forecast_step_seconds=0.02,
        peak_allocated_bytes=None, forecast_allocated_bytes=2**30, seconds_left=left, metrics=metrics,
    )  # fmt: skip


def test_forecast_stands_beside_measured_for_each_run():
    left = Range(optimistic=1.0, expected=2.0, conservative=3.0)
    rows = {row["what"]: row for row in beside([view("a", {}), view("b", {}, left=left)])}
    assert rows["step time"] == {
        "what": "step time", "forecast0": "20.0 ms", "measured0": "10.0 ms", "forecast1": "20.0 ms",
        "measured1": "10.0 ms",
    }  # fmt: skip
    assert rows["memory"]["measured0"] == ""
    assert rows["time left"] == {"what": "time left", "forecast1": "2.00 s", "measured1": ""}


def test_scores_of_baselines_come_last():
    rows = scores([view("a", {"tf-idf.f1": 0.1, "macro_f1": 0.9}), view("b", {"ece": 0.2})])
    assert rows == [{"what": "macro f1", "run0": "0.9000"}, {"what": "ece", "run1": "0.2000"}, {"what": "tf-idf.f1", "run0": "0.1000"}]  # fmt: skip


def test_only_what_differs_gets_an_axis():
    settings = [
        {"name": "x", "optimizer": {"learning_rate": rate, "name": "adamw"}, "labels": [rate], **more}
        for rate, more in ((1e-3, {}), (1e-4, {"adapter": {"rank": 8}}))
    ]
    assert different_settings(settings) == {"optimizer.learning_rate": [1e-3, 1e-4], "adapter.rank": [None, 8]}


class Row:
    """A run as listed."""

    name, workload, gpu = "n", "w", "cpu"

    def __init__(self, run_id, rate):
        self.id, self.settings = run_id, {"rate": rate, "fused": rate > 1}


class OpenLedger:
    """A ledger in which the run `c` goes on."""

    def measurement(self, run_id):
        return None if run_id == "c" else "there"


def test_runs_of_one_name_are_lines_over_what_differs(monkeypatch):
    metrics = {"a": {"training_loss": 1.0, "same": 1.0, "f1": 0.5}, "b": {"training_loss": 2.0, "same": 1.0, "f1": 0.7}}
    monkeypatch.setattr(runs_view, "view_of", lambda ledger, run_id: view(run_id, metrics[run_id]))
    (several,) = several_runs(OpenLedger(), [Row("a", 1), Row("b", 2), Row("c", 3)])
    assert several.labels == ["a", "b"], "a run that goes on has no result"
    assert several.axes == ["rate", "fused", "step (ms)", "loss", "f1"], "a score that differs, not the loss again"
    assert several.lines == [[1.0, "False", 10.0, 0.5, 0.5], [2.0, "True", 10.0, 0.5, 0.7]]
    assert several_runs(OpenLedger(), [Row("a", 1), Row("b", 1)]) == []
