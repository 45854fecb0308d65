"""One run on several GPUs: rows against forecasts of their own settings, and which one is chosen."""

from functools import cache

import pytest

from forerun.api import forecast, request_of
from forerun.hardware.catalogue import device
from forerun.plan.choose import PlanLimits
from forerun.plan.compare import compare_gpus
from forerun.settings.load import settings_from
from forerun.units import MIB

GPUS = ("t4", "l4", "a100-40gb")
SETTINGS = settings_from({
    "name": "small", "workload": "causal-lm", "precision": "bf16-mixed",
    "model": {"name": "tiny-gpt2", "config": {"n_layer": 1, "n_positions": 256}},
    "batch": {"micro_batch_size": 1, "gradient_accumulation_steps": 4, "sequence_length": 256},
    "data": {"examples": 400_000}, "schedule": {"warmup_steps": 10},
})  # fmt: skip
CLOSE = 0.01
"""An estimate takes the rest of the run over from another GPU; its steps are those of a forecast."""


def ask(settings, gpu):
    return request_of(settings, gpu, None)


@cache
def compared(deadline: float | None = None):
    return compare_gpus(SETTINGS, [device(name) for name in GPUS], ask, limits=PlanLimits(deadline))


def test_rows_agree_with_forecasts_of_their_settings():
    for row in compared().rows:
        assert row.fits
        overrides = [f"{change.path}={change.new}" for change in row.changes]
        full = forecast(SETTINGS, row.gpu, overrides)
        assert row.step_seconds == pytest.approx(full.step.seconds.expected, rel=CLOSE), row.gpu
        assert row.device_bytes == pytest.approx(full.memory.device_bytes.conservative, rel=CLOSE), row.gpu
        assert row.run_seconds == pytest.approx(full.run.seconds.expected, rel=2 * CLOSE), row.gpu
        assert row.cost == pytest.approx(full.run.cost, rel=2 * CLOSE), row.gpu


def test_each_gpu_has_its_own_micro_batch_and_number_format():
    rows = {row.gpu: {change.path: change.new for change in row.changes} for row in compared().rows}
    assert rows["t4"]["precision"] == "fp16-mixed"
    assert "precision" not in rows["a100-40gb"]
    assert rows["a100-40gb"]["batch.micro_batch_size"] == 4


def test_without_limits_the_fastest_is_chosen_and_forecast_in_full():
    comparison = compared()
    rows = {row.gpu: row for row in comparison.rows}
    assert comparison.chosen == comparison.fastest == "a100-40gb"
    assert comparison.cheapest == min(rows, key=lambda gpu: rows[gpu].cost)
    assert rows[comparison.fastest].is_full_forecast
    assert rows[comparison.cheapest].is_full_forecast
    assert rows[comparison.fastest].is_on_front
    assert rows[comparison.cheapest].is_on_front


def test_with_a_deadline_the_cheapest_that_keeps_it():
    rows = {row.gpu: row for row in compared().rows}
    slowest = max(row.run_seconds for row in rows.values())
    assert compared(2 * slowest).chosen == compared().cheapest
    late = compared(1.0)
    assert late.chosen is None
    assert all(row.fits and not row.keeps_limits for row in late.rows)


def test_cards_that_are_too_small_say_what_is_needed():
    tiny = device("t4").model_copy(update={"memory_bytes": 150 * MIB})
    comparison = compare_gpus(SETTINGS, [tiny], ask)
    assert comparison.chosen is None
    assert not comparison.rows[0].fits
    assert "of 150 MiB" in comparison.rows[0].why_not
