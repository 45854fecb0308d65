"""A busy process beside this one is seen."""

import os
import subprocess
import sys
import time

import pytest

from forerun.hardware import processor_time
from forerun.hardware.processor_time import ProcessorTime, crowd_note


def test_a_busy_process_is_seen():
    watch = ProcessorTime()
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    time.sleep(1)
    others, stolen = watch.shares()
    busy.kill()
    busy.wait()
    assert others is not None
    assert stolen is not None
    assert 0.3 / (os.cpu_count() or 1) < others <= 1
    assert 0 <= stolen < 1


def test_a_share_is_never_above_one(monkeypatch):
    counts = iter([(8_000_000.1, 0.0, 16_000_000.3, 0.0), (8_000_000.1 + 2.0000001, 0.0, 16_000_000.3 + 2.0, 0.0)])
    monkeypatch.setattr(processor_time, "_processor_seconds", lambda: next(counts))
    assert ProcessorTime().shares() == (1.0, 0.0)


def test_where_nothing_is_counted_nothing_is_known(monkeypatch, tmp_path):
    monkeypatch.setattr(processor_time, "STAT", tmp_path / "none")
    assert ProcessorTime().shares() == (None, None)


@pytest.mark.skipif(sys.platform != "linux", reason="counted by Linux")
def test_waits_for_a_processor_are_counted():
    everywhere = os.sched_getaffinity(0)
    here = min(everywhere)
    busy = subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{here}])\nwhile True: pass"])
    try:
        os.sched_setaffinity(0, [here])
        watch = ProcessorTime()
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            pass
        beside = watch.waiting_share()
    finally:
        os.sched_setaffinity(0, everywhere)
        busy.kill()
        busy.wait()
    watch = ProcessorTime()
    time.sleep(0.2)
    assert watch.waiting_share() < 0.2 < beside <= 1.01


def test_without_schedstat_no_wait_is_known(monkeypatch, tmp_path):
    monkeypatch.setattr(processor_time, "THREADS", tmp_path / "none")
    assert ProcessorTime().waiting_share() is None


@pytest.mark.parametrize(
    ("waiting", "threads", "is_said"), [(0.5, 2, True), (0.05, 2, False), (0.5, 1, False), (None, 2, False)]
)
def test_who_waits_for_processors_is_told_of_threads(monkeypatch, waiting, threads, is_said):
    watch = ProcessorTime()
    monkeypatch.setattr(watch, "waiting_share", lambda: waiting)
    monkeypatch.setattr(watch, "shares", lambda: (0.4, 0.0))
    assert ("--threads 1" in crowd_note(watch, threads)) == is_said
