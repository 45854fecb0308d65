"""What may go of `runs/`, and what never does."""

import os
import time

import pytest

from forerun.ledger.store import open_ledger
from forerun.ledger.test_store import RUN
from forerun.records import Verdict
from forerun.runs.prune import DAY, PrunePolicy, bound_files, prune_plan, prune_table, remove

OLD = 40 * DAY


@pytest.fixture
def ledger(tmp_path):
    with open_ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}") as opened:
        yield opened


def age(path, seconds):
    for one in [path, *path.rglob("*")]:
        os.utime(one, (time.time() - seconds,) * 2)


def enter(ledger, root, *, age_seconds=OLD, passed=None, state="verified", **changes):
    """A run with a checkpoint of 1,000 bytes, last written so long ago."""
    run_id = ledger.start_run(**{**RUN, "folder": str(root), **changes})
    place = root / run_id / "checkpoints" / "step-00000001"
    place.mkdir(parents=True)
    (place / "model").write_bytes(b"x" * 1000)
    (root / run_id / "report.html").write_text("a page")
    age(root / run_id, age_seconds)
    if passed is not None:
        ledger.record_verdict(run_id, Verdict(run_id=run_id, rows=[], criteria=[], first_cause="", passed=passed))
    ledger.record_event(run_id, state)
    return run_id


def test_old_checkpoints_go_and_what_counts_stays(ledger, tmp_path):
    root = tmp_path / "runs"
    passed_before = enter(ledger, root, passed=True)
    best = enter(ledger, root, passed=True)
    failed = enter(ledger, root, passed=False)
    started_from = enter(ledger, root, name="other")
    enter(ledger, root, name="child", settings={"recipe": {"start_from": f"runs/{started_from}/checkpoints"}})
    young = enter(ledger, root, age_seconds=DAY)
    elsewhere = enter(ledger, tmp_path / "others")
    newest = enter(ledger, root)
    training = enter(ledger, root, age_seconds=60, state="resumed")
    plan = prune_plan(ledger, root, PrunePolicy(keep=2, days=30))
    reasons = {item.path.split(os.sep)[-2]: item.reason for item in plan}
    assert {run for run, reason in reasons.items() if not reason} >= {passed_before, failed}
    assert elsewhere not in reasons
    assert "passed" in reasons[best]
    assert "named by run" in reasons[started_from]
    assert "within 30 days" in reasons[young]
    assert "newest 2" in reasons[newest]
    assert "newest 2" in reasons[training]
    eager = prune_plan(ledger, root, PrunePolicy(keep=0, days=0))
    assert {item.path.split(os.sep)[-2]: item.reason for item in eager}[training] == "may still be training"


def test_only_what_was_shown_goes_and_its_page_stays(ledger, tmp_path):
    root = tmp_path / "runs"
    old, new = enter(ledger, root, passed=False), enter(ledger, root)
    plan = prune_plan(ledger, root, PrunePolicy(keep=1))
    assert (root / old / "checkpoints").exists(), "a plan removes nothing"
    table = prune_table(plan, is_dry=True)
    assert "--no-dry-run" in table.note
    assert remove(plan) == sum(item.size_bytes for item in plan if not item.reason) > 1000
    assert not (root / old / "checkpoints").exists()
    assert (root / old / "report.html").exists()
    assert (root / new / "checkpoints").exists()
    assert len(ledger.runs()) == 2


def test_frozen_states_that_nobody_reads_go(ledger, tmp_path):
    root = tmp_path / "runs"
    for name, seconds in (("read", DAY), ("unread", OLD)):
        path = root / "frozen" / "weights" / f"{name}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 10)
        os.utime(path, (time.time() - seconds,) * 2)
    remove(prune_plan(ledger, root, PrunePolicy()))
    assert [path.stem for path in root.rglob("*.safetensors")] == ["read"]


def test_files_are_bounded_and_the_longest_unread_go_first(tmp_path):
    for number in range(5):
        path = tmp_path / str(number) / "a.safetensors"
        path.parent.mkdir()
        path.write_bytes(b"x" * 100)
        os.utime(path, (1000 + number, 1000 + number))
    assert bound_files(tmp_path, "*/*.safetensors", 250) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "4"]


def test_a_clock_that_was_put_back_removes_nothing(ledger, tmp_path):
    enter(ledger, tmp_path / "runs", age_seconds=-OLD)
    (item,) = prune_plan(ledger, tmp_path / "runs", PrunePolicy(keep=0))
    assert item.reason
    assert item.unused_days == 0
