"""Append-only, several writers, and what is read back is what was written."""

import datetime as dt
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from forerun.errors import LedgerConflict, LedgerNotWritten, RunNotFound
from forerun.experience import DeviceCalibration
from forerun.ledger import store
from forerun.ledger.store import STEPS_AT_ONCE, Ledger, LedgerWarning, open_ledger
from forerun.ledger.tables import VERSION
from forerun.records import CriterionResult, StepPhases, StepReport, Verdict
from forerun.verify.test_compare import forecast, measurement

RUN = {
    "name": "r",
    "workload": "w",
    "settings": {"a": 1},
    "settings_hash": "0" * 16,
    "gpu": "cpu",
    "folder": "f",
    "versions": {},
}


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'deep' / 'ledger.sqlite'}"


def step(number, loss=1.0):
    return StepReport(
        step=number, epoch=0, loss=loss, learning_rate=1e-3, step_seconds=0.1, phases=StepPhases(), samples=1, tokens=1,
        padded_tokens=1,
    )  # fmt: skip


def verdict(passed):
    criterion = CriterionResult(name="c", rule="> 0", value=1, passed=passed)
    return Verdict(run_id="x", rows=[], criteria=[criterion], first_cause="", passed=passed)


def test_runs_come_back(url):
    with open_ledger(url) as ledger:
        run_id = ledger.start_run(**RUN)
        assert ledger.run(run_id).settings == {"a": 1}
        assert ledger.run(run_id[:-1]).id == ledger.run("last").id == run_id
        assert [row.id for row in ledger.runs()] == [run_id]


def test_a_run_is_found_by_its_folder(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open_ledger(url) as ledger:
        run_id = ledger.start_run(**{**RUN, "folder": str(tmp_path / "runs")})
        other = ledger.start_run(**{**RUN, "folder": "elsewhere"})
        for path in (f"runs/{run_id}", f"./runs/{run_id}/", str(tmp_path / "runs" / run_id)):
            assert ledger.run(path).id == run_id
        with pytest.raises(RunNotFound, match="runs rebuild"):
            ledger.run(f"runs/{other}")


def test_state_is_the_latest_event(url):
    with open_ledger(url) as ledger:
        run_id = ledger.start_run(**RUN)
        assert ledger.run(run_id).state == "started"
        for kind in ("interrupted", "resumed", "finished"):
            ledger.record_event(run_id, kind)
            assert ledger.run(run_id).state == kind


def test_unknown_runs(url):
    with open_ledger(url) as ledger:
        with pytest.raises(RunNotFound, match="no runs yet"):
            ledger.run("last")
        run_id = ledger.start_run(**RUN)
        with pytest.raises(RunNotFound, match=run_id):
            ledger.run(run_id[:-1] + "z")
        ledger.start_run(**RUN)
        with pytest.raises(RunNotFound, match="2 runs"):
            ledger.run(run_id[:3])


def test_results_are_not_rewritten(url):
    with open_ledger(url) as ledger:
        run_id = ledger.start_run(**RUN)
        ledger.record_result(run_id, "scores", {"auc": 0.9})
        with pytest.raises(LedgerConflict, match="scores"):
            ledger.record_result(run_id, "scores", {"auc": 0.99})
        assert ledger.results(run_id) == {"scores": {"auc": 0.9}}


def test_verifying_again_adds_a_verdict(url):
    with open_ledger(url) as ledger:
        run_id = ledger.start_run(**RUN)
        assert ledger.verdict(run_id) is None
        for passed in (False, True):
            ledger.record_verdict(run_id, verdict(passed))
            assert ledger.verdict(run_id).passed is passed


def test_replayed_steps_are_a_new_attempt(url):
    with open_ledger(url) as ledger:
        run_id = ledger.start_run(**RUN)
        for number in range(1, STEPS_AT_ONCE + 5):
            ledger.record_step(run_id, step(number))
    with open_ledger(url) as ledger:
        ledger.record_step(run_id, step(3, loss=2.0))
        steps = ledger.steps(run_id)
    assert [s.step for s in steps] == list(range(1, STEPS_AT_ONCE + 5))
    assert [s.loss for s in steps if s.step in (2, 3)] == [1.0, 2.0]


def fill_disk(ledger, pages=0):
    """SQLite refuses to grow as on a full disk; 0 allows as much as there is."""
    with ledger._engine.connect() as connection:
        size = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages or size}")


def record(ledger, run_id, numbers):
    for number in numbers:
        ledger.record_step(run_id, step(number))


def test_steps_wait_where_they_cannot_be_written(url):
    """A caller that asks for certainty gets the error."""
    with open_ledger(url) as ledger:
        run_id = ledger.start_run(**RUN)
        fill_disk(ledger)
        with pytest.warns(LedgerWarning, match=f"disk is full.* {STEPS_AT_ONCE} steps wait; training goes on"):
            record(ledger, run_id, range(1, STEPS_AT_ONCE + 2))
        with pytest.raises(LedgerNotWritten, match=r"ledger\.sqlite cannot be written"):
            ledger.record_event(run_id, "finished")
        fill_disk(ledger, pages=10_000)
        ledger.record_event(run_id, "finished")
        assert [report.step for report in ledger.steps(run_id)] == list(range(1, STEPS_AT_ONCE + 2))


def test_a_ledger_that_cannot_be_written_hides_no_other_error(url):
    with pytest.raises(KeyError):
        fail_on_a_full_disk(url)


def fail_on_a_full_disk(url):
    with open_ledger(url) as ledger:
        record(ledger, ledger.start_run(**RUN), range(1, STEPS_AT_ONCE))
        fill_disk(ledger)
        raise KeyError("what really happened")


def test_two_writers_lose_nothing(url):
    open_ledger(url).close()
    code = (
        "from forerun.ledger.store import open_ledger; from forerun.ledger.test_store import RUN, step\n"
        f"with open_ledger({url!r}) as ledger:\n"
        "    for _ in range(10):\n"
        "        run = ledger.start_run(**RUN)\n"
        "        for n in range(20): ledger.record_step(run, step(n))\n"
        "        ledger.flush()\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    with open_ledger(url) as ledger:
        rows = ledger.runs(limit=100)
        assert len(rows) == 20
        assert all(len(ledger.steps(row.id)) == 20 for row in rows)


def test_a_newer_ledger_is_refused(url):
    ledger = open_ledger(url)
    with ledger._engine.begin() as connection:
        connection.execute(VERSION.insert().values(version=99))
    ledger.close()
    with pytest.raises(LedgerConflict, match="schema 99"):
        open_ledger(url)


@pytest.mark.parametrize("bad", ["nonsense", "nosuch://x", "sqlite:////proc/none/x.sqlite"])
def test_bad_urls_are_explained(bad):
    with pytest.raises(LedgerConflict, match="FORERUN_LEDGER"):
        open_ledger(bad)


def test_rows_have_no_update_or_delete():
    source = Path(str(sys.modules[Ledger.__module__].__file__)).read_text()
    assert ".update(" not in source
    assert ".delete(" not in source


def test_the_latest_calibration_counts(url):
    with open_ledger(url) as ledger:
        assert ledger.calibration("cpu") is None
        for seconds in (1.0, 2.0):
            ledger.record_calibration(DeviceCalibration(
                gpu="cpu", device_name="d", threads=2, products=[], attention=[], copy_bytes_per_second={1024: 1e9},
                fresh_page_seconds_per_byte=0, operator_host_seconds=seconds, disk_write_bytes_per_second=1,
                disk_read_bytes_per_second=1, tokenised_bytes_per_second=1, import_seconds=1, took_seconds=1,
            ))  # fmt: skip
        calibration = ledger.calibration("cpu")
        assert calibration is not None
        assert calibration.operator_host_seconds == 2.0
        assert calibration.copy_bytes_per_second == {1024: 1e9}
        assert ledger.calibration("t4") is None


def test_outcomes_are_finished_runs_of_one_device(url):
    with open_ledger(url) as ledger:
        for gpu, is_finished in (("cpu", True), ("cpu", False), ("t4", True)):
            run_id = ledger.start_run(**{**RUN, "gpu": gpu})
            ledger.record_forecast(run_id, forecast())
            if is_finished:
                ledger.record_measurement(run_id, measurement())
        outcomes = ledger.outcomes("cpu")
        assert [outcome.settings for outcome in outcomes] == [RUN["settings"]]
        assert outcomes[0].forecast == forecast()
        assert outcomes[0].measurement == measurement()


def test_runs_are_in_the_order_that_they_were_entered_whatever_the_clock_says(url, monkeypatch):
    hours = iter([12, 12, 3, 3, 2, 2])

    class Clock(dt.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 1, next(hours), tzinfo=tz)

    monkeypatch.setattr(store, "dt", SimpleNamespace(datetime=Clock, UTC=dt.UTC))
    with open_ledger(url) as ledger:
        entered = [ledger.start_run(**RUN) for _ in range(3)]
        assert [row.id for row in ledger.runs()] == entered[::-1]
        assert ledger.run("last").id == entered[-1]
