"""Other work on the processors while operators are timed: when it counts, and what is then taken."""

import os
import statistics
from collections import Counter

import pytest
import torch

import forerun
from forerun.errors import FilesNotWritten
from forerun.forecasting.host_costs import CROWDED, crowd
from forerun.hardware import micro_benchmarks
from forerun.trace import Trace
from forerun.virtual import operator_timing
from forerun.virtual.operator_timing import CROWDED_VISITS, VISITS, time_calls


class RecordedProcessorTime:
    """Processor time as it was counted."""

    def __init__(self, others):
        self.others = others

    def shares(self):
        return self.others, 0.0


@pytest.mark.parametrize(
    ("threads", "others", "expected"),
    [(4, 0.05, 0.0), (4, 0.3, 0.3), (2, 0.5, 0.0), (2, 0.7, 0.7), (8, 0.2, 0.2), (4, None, 0.0)],
)
def test_a_crowd_is_what_leaves_too_few_processors(monkeypatch, threads, others, expected):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert crowd(RecordedProcessorTime(others)) == expected
    assert CROWDED < 0.3


def test_in_a_crowd_the_undisturbed_runs_of_a_call_count(monkeypatch):
    from forerun.api import request_of
    from forerun.data.plan import BatchShape
    from forerun.hardware.detect import detect_cpu
    from forerun.settings.load import settings_from
    from forerun.virtual.trace_step import trace_step

    settings = settings_from({
        "name": "small", "workload": "causal-lm", "model": {"name": "tiny-gpt2", "config": {"n_layer": 1}},
        "precision": "fp32", "data": {"examples": 64}, "batch": {"micro_batch_size": 1, "sequence_length": 16},
    })  # fmt: skip
    here = detect_cpu().device
    trace: Trace = trace_step(settings, request_of(settings, here, None).workload, here, BatchShape(1, 16))
    visits = Counter()

    def timed(call, *rest):
        visits[call] += 1
        return [1.0, 1.0, 1.5] if visits[call] == 7 else [300.0, 200.0, 300.0]

    monkeypatch.setattr(operator_timing, "_time_call", timed)
    crowded = time_calls(trace, torch.device("cpu"), is_crowded=lambda: True)
    assert set(crowded.values()) == {1.0}, "the one visit that nobody disturbed"
    assert min(visits.values()) == CROWDED_VISITS
    visits.clear()
    alone = time_calls(trace, torch.device("cpu"))
    assert set(alone.values()) == {statistics.fmean([300.0, 200.0, 300.0])}
    assert min(visits.values()) == VISITS


def test_a_full_disk_is_no_reason_not_to_forecast(monkeypatch):
    """Checkpoints are priced at the stated speed, and the forecast says so."""

    def full(folder):
        raise FilesNotWritten("The speed of the disk under /here cannot be measured with 64 MiB: full. Free space.")

    monkeypatch.setattr(micro_benchmarks, "disk_speed", full)
    forecast = forerun.forecast(
        {"name": "d", "workload": "causal-lm", "model": {"name": "tiny-gpt2"}, "data": {"examples": 8},
         "batch": {"sequence_length": 16}}, gpu="cpu",
    )  # fmt: skip
    assert any("measured with 64 MiB: full; 1 GB/s is assumed" in warning for warning in forecast.warnings)
