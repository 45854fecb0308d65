"""Real steps in every precision of this CPU, and the recommendation by hand."""

import pytest
from rich.console import Console

from forerun.errors import UnknownModel
from forerun.hardware.detect import detect_cpu
from forerun.report.precisions import precision_view
from forerun.verify import precision_benchmark
from forerun.verify.precision_benchmark import PrecisionRow, benchmark_precisions, recommendation


def row(precision, seconds, is_sound=True):
    return PrecisionRow(
        precision=precision, sequence_length=128, step_seconds=seconds, loss_is_finite=is_sound,
        gradients_are_finite=is_sound,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ([row("fp32", 2.0), row("bf16-mixed", 1.0)], "bf16-mixed"),
        ([row("fp32", 1.02), row("bf16-mixed", 1.0)], "fp32"),
        ([row("fp32", 2.0), row("fp16-mixed", 0.5, is_sound=False), row("bf16-mixed", 1.0)], "bf16-mixed"),
        ([row("fp32", 4.0), row("tf32", 2.0), row("fp16-mixed", 1.0), row("bf16-mixed", 1.01)], "fp16-mixed"),
        ([PrecisionRow(precision="tf32", sequence_length=128, refused="no"), row("fp32", 1.0)], "fp32"),
        ([row("fp32", 1.0, is_sound=False)], "None"),
        ([row("fp32", 1.0), row("fp16-mixed", 0.5).model_copy(update={"refused": "for GPUs"})], "fp32: fp16-mixed, wh"),
    ],
)
def test_recommendation(rows, best):
    assert recommendation(rows).startswith(best)


@pytest.mark.medium
def test_a_small_model_on_this_cpu(monkeypatch):
    monkeypatch.setattr(precision_benchmark, "STEP_SECONDS", 0.1)
    device = detect_cpu().device
    benchmark = benchmark_precisions("tiny-bert", device, micro_batch_size=2, lengths=(16,))
    rows = {r.precision: r for r in benchmark.rows}
    assert list(rows) == ["fp32", "tf32", "fp16-mixed", "bf16-mixed"]
    half = rows["fp16-mixed"]
    assert "is for GPUs" in half.refused
    assert half.is_sound
    assert half.forecast_step_seconds is None
    assert half.step_seconds_p10 <= half.step_seconds <= half.step_seconds_p90
    assert rows["tf32"].refused
    assert rows["tf32"].step_seconds is None
    assert bool(rows["bf16-mixed"].refused) is not device.has_bf16
    assert "fp16-mixed, which a run here refuses, takes" in benchmark.recommendation
    full = rows["fp32"]
    assert full.is_sound
    assert full.step_seconds_p10 <= full.step_seconds <= full.step_seconds_p90
    for part in (full.forward_seconds, full.backward_seconds, full.optimizer_seconds):
        assert 0 < part <= full.step_seconds, "no part of a step outlasts it, so neither does its median"
    assert full.forecast_peak_allocated_bytes == pytest.approx(full.peak_allocated_bytes, rel=0.02)
    console = Console(width=100, record=True)
    console.print(precision_view("t", benchmark.rows, benchmark.recommendation))
    text = console.export_text()
    assert "Recommended: " in text
    assert [line.split()[-1] for line in text.splitlines() if "fp16-mixed" in line][0] == "refused"


def test_an_unknown_model_is_refused():
    with pytest.raises(UnknownModel):
        benchmark_precisions("no-such-model", detect_cpu().device)
