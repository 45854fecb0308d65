"""A start-up that nobody timed follows from the model's size and the device."""

import pytest

import forerun
from forerun.forecasting.startup import DEVICE_SECONDS, IMPORT_SECONDS, SHAPE_SECONDS, stated_startup_seconds


def test_large_weights_take_longer_to_read_and_a_cpu_has_no_context():
    on_card, on_host = (stated_startup_seconds(7 * 10**9, kind, 1e9) for kind in ("cuda", "cpu"))
    assert on_card == pytest.approx(IMPORT_SECONDS + DEVICE_SECONDS + 14)
    assert on_card - on_host == DEVICE_SECONDS


def test_each_further_shape_is_slow_once_on_a_card():
    seconds = [stated_startup_seconds(0, kind, 1e9, shapes=9) for kind in ("cuda", "cpu")]
    assert seconds == pytest.approx([IMPORT_SECONDS + DEVICE_SECONDS + 8 * SHAPE_SECONDS, IMPORT_SECONDS])


def test_a_forecast_states_its_start_up():
    settings = {"name": "s", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "data": {"examples": 1000}}
    forecast = forerun.forecast(settings, gpu="t4")
    assert forecast.run.phases.startup_seconds == pytest.approx(IMPORT_SECONDS + DEVICE_SECONDS, abs=0.1)
    assert any("of start-up" in warning for warning in forecast.warnings)
