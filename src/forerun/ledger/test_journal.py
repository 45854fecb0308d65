"""A ledger that is gone comes back from the folders of its runs, in the order that it had, whatever clocks said."""

import datetime as dt
from types import SimpleNamespace

import pytest

from forerun.ledger import store
from forerun.ledger.journal import FILE, JournalWarning, read_journal
from forerun.ledger.store import open_ledger
from forerun.ledger.test_store import RUN, step, verdict
from forerun.verify.test_compare import forecast, measurement


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


def fill(ledger, root):
    """Two runs, the second by a clock that was put back, with everything that a run has."""
    run_ids = []
    for number in range(2):
        run_id = ledger.start_run(**{**RUN, "folder": str(root)})
        ledger.record_forecast(run_id, forecast())
        for each in range(3):
            ledger.record_step(run_id, step(each, loss=number))
        ledger.record_measurement(run_id, measurement())
        ledger.record_verdict(run_id, verdict(True))
        ledger.record_result(run_id, "tables", {"of": number})
        ledger.record_event(run_id, "verified")
        run_ids.append(run_id)
    return run_ids


def content(ledger, run_ids):
    runs = [row.model_dump() for row in ledger.runs()]
    outcomes = [row.run_id for row in ledger.outcomes("cpu")]
    return runs, outcomes, [
        (ledger.forecast(r), ledger.measurement(r), ledger.verdict(r), ledger.results(r), ledger.steps(r))
        for r in run_ids
    ]  # fmt: skip


def turn_clock_back(monkeypatch):
    hours = iter(range(0, -10_000, -1))

    class Clock(dt.datetime):
        @classmethod
        def now(cls, tz=None):
            return dt.datetime(2026, 11, 23, 12, tzinfo=dt.UTC) + dt.timedelta(hours=next(hours))

    monkeypatch.setattr(store, "dt", SimpleNamespace(datetime=Clock, UTC=dt.UTC))


def test_what_was_lost_comes_back_once_and_in_order(root, tmp_path, monkeypatch):
    turn_clock_back(monkeypatch)
    with open_ledger(f"sqlite:///{tmp_path / 'first.sqlite'}") as ledger:
        run_ids = fill(ledger, root)
        before = content(ledger, run_ids)
        assert before[1] == run_ids[::-1], "outcomes are newest first, though the clock ran back"
    with open_ledger(f"sqlite:///{tmp_path / 'second.sqlite'}") as ledger:
        back = ledger.rebuild(root)
        assert (back.folders, back.runs, back.lines_lost) == (2, 2, 0)
        assert content(ledger, run_ids) == before
        assert ledger.rebuild(root).rows == 0, "nothing comes twice"
        ledger.record_step(run_ids[0], step(3))  # and it goes on: a new attempt
        ledger.flush()
        assert [report.step for report in ledger.steps(run_ids[0])] == [0, 1, 2, 3]
        assert ledger.rebuild(root).rows == 0


def test_a_damaged_journal_gives_what_can_be_read(root, tmp_path):
    with open_ledger(f"sqlite:///{tmp_path / 'first.sqlite'}") as ledger:
        one, other = fill(ledger, root)
        (root / other).rename(root / "copied")  # rows that name another folder's run are left alone
        file = root / one / FILE
        lines = file.read_bytes().splitlines(keepends=True)
        damaged = [
            b'{"table": "sqlite_master", "row": {}}\n',
            b"\xff\xfe\n",
            lines[0],
            b'{"table": "steps", "row": {"run_id": 1}}\n',
        ]
        file.write_bytes(b"".join([*damaged, *lines[1:]])[:-5])  # and killed inside the last line
        ledger.record_event(one, "resumed")
    rows, lost = read_journal(file)
    assert lost == 4
    assert rows["events"][-1]["kind"] == "resumed", "a line begins where the last one was cut"
    with open_ledger(f"sqlite:///{tmp_path / 'second.sqlite'}") as ledger:
        back = ledger.rebuild(root)
        assert (back.folders, back.runs, back.lines_lost) == (2, 1, 4)
        assert ledger.run(one).state == "resumed"
        assert len(ledger.steps(one)) == 3


def test_a_ledger_with_runs_of_its_own_keeps_them(root, tmp_path):
    with open_ledger(f"sqlite:///{tmp_path / 'first.sqlite'}") as ledger:
        lost = fill(ledger, root)
    with open_ledger(f"sqlite:///{tmp_path / 'second.sqlite'}") as ledger:
        own = ledger.start_run(**RUN)
        ledger.rebuild(root)
        assert {row.id for row in ledger.runs()} == {own, *lost}
        assert ledger.run(own).state == "started"
        assert ledger.run(lost[1]).state == "verified"
        assert ledger.run(lost[1]).folder == str(root)


def test_a_folder_that_may_not_be_written_is_said_once(root, tmp_path):
    with open_ledger(f"sqlite:///{tmp_path / 'first.sqlite'}") as ledger:
        run_id = ledger.start_run(**{**RUN, "folder": str(root)})
        (root / run_id / FILE).unlink()
        (root / run_id / FILE).mkdir()  # nobody can write there, not even root
        with pytest.warns(JournalWarning, match="cannot be written"):
            ledger.record_event(run_id, "resumed")
        ledger.record_event(run_id, "finished")  # a second warning would be an error
        assert ledger.run(run_id).state == "finished"


def test_no_folder_no_journal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open_ledger(f"sqlite:///{tmp_path / 'first.sqlite'}") as ledger:
        ledger.start_run(**RUN)
    assert not (tmp_path / "f").exists()
