"""A busy process beside this one is seen."""

import os
import subprocess
import sys
import time

from forerun.hardware import processor_time
from forerun.hardware.processor_time import ProcessorTime


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
