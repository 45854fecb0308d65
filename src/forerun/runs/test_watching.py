"""A run seen from outside: what the ledger holds of it, and no more."""

import io
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from forerun.cli.main import command_line
from forerun.cli.options import complete_gpus, complete_runs, complete_targets
from forerun.errors import RunNotFound
from forerun.ledger.store import open_ledger
from forerun.runs.test_eta import report
from forerun.runs.watching import POINTS, RunningCurve, bars, curve_of, view_of, view_panel
from forerun.verify.test_compare import forecast


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    monkeypatch.setenv("FORERUN_LEDGER", url)
    with open_ledger(url) as ledger:
        run_id = ledger.start_run(
            name="n", workload="w", settings={}, settings_hash="h", gpu="t4", folder="f", versions={}
        )
        ledger.record_forecast(run_id, forecast())
        for number in range(1, 51):
            ledger.record_step(run_id, report(number, 3.0).model_copy(update={"loss": 5 - number / 20, "tokens": 60}))
        ledger.flush()
        yield ledger


def test_a_run_in_progress(ledger):
    view = view_of(ledger, "last")
    assert (view.step, view.loss, view.step_seconds, view.is_over) == (50, 2.5, 3.0, False)
    assert view.tokens_per_second == pytest.approx(20)
    left = (view.total_steps - 50) * 3.0
    assert view.seconds_left.optimistic < left < view.seconds_left.conservative
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(view_panel(view))
    text = console.export_text()
    assert f"50 of {view.total_steps}" in text
    assert "4.9500 → 2.5000" in text


def test_the_command_ends_with_the_run_and_names_the_nearest(ledger):
    run_id = view_of(ledger, "last").run_id
    running = CliRunner().invoke(command_line(), ["watch", "--json"])
    assert json.loads(running.stdout)["state"] == "started"
    ledger.record_event(run_id, "interrupted")
    ended = CliRunner().invoke(command_line(), ["watch", run_id])
    assert (ended.exit_code, "interrupted" in ended.stdout) == (0, True)
    with pytest.raises(RunNotFound, match=run_id):
        view_of(ledger, "nope")


def test_a_curve_is_thinned_by_means_and_leaves_out_what_is_no_number():
    curve = curve_of([(step, float(step)) for step in range(1, 601)] + [(601, float("nan")), (602, float("inf"))])
    assert (len(curve), curve[0], curve[-1]) == (POINTS, (10, 5.5), (600, 595.5))
    assert (bars([1.0, 2.0, 3.0]), bars([]), bars([2.0, 2.0])) == ("▁▅█", "", "▁▁")


def test_the_shell_completes_names(ledger, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arid.yaml").write_text("")
    assert complete_gpus("t4,a100-80gb-p") == ["t4,a100-80gb-pcie"]
    assert {"arithmetic", "arid.yaml"} <= set(complete_targets("ari"))
    assert complete_runs("la") == ["last"]


def test_a_running_curve_fits_a_line_however_many_the_steps():
    short, long = RunningCurve(), RunningCurve()
    for value in (3.0, float("nan"), 2.0, 1.0):
        short.add(value)
    assert short.line() == "█▅▁  3.0000 → 1.0000"
    for step in range(10_000):
        long.add(10_000.0 - step)
    assert 30 <= len(long.means) < 60
    assert long.means == sorted(long.means, reverse=True)
    assert len(long.line()) < 90
    assert RunningCurve().line() == ""
