"""Every candidate of the space forecast in full: what the search is checked against, too slow for use."""

from collections.abc import Iterator

from forerun.errors import ForerunError
from forerun.forecasting.forecast import make_forecast
from forerun.hardware.catalogue import Device
from forerun.plan.candidates import Ask, give_back_memory
from forerun.plan.space import (
    batch_sizes,
    changed,
    precisions,
    recomputations,
    samples_per_device,
    strategies,
    with_batch,
)
from forerun.records import Forecast
from forerun.settings.schema import Settings


def candidates(original: Settings, device: Device, *, compiled: bool) -> Iterator[Settings]:
    """Precisions, recomputation, chunked losses, strategies and micro-batch sizes in all combinations."""
    start = changed(original, {
        "compile": "none", "compile_unit": "model", "model.attention": "auto", "optimizer.implementation": "auto",
    })  # fmt: skip
    modes = [{"compile": "none", "compile_unit": "model"}, {"compile": "default", "compile_unit": "blocks"}]
    batch = samples_per_device(original)
    for precision in precisions(original, device):
        for kind in strategies(original):
            for saving in recomputations(original):
                for mode in modes[: 2 if compiled else 1]:
                    settings = changed(start, {"precision": precision, "parallel.kind": kind, **saving, **mode})
                    for size in batch_sizes(original, batch):
                        yield with_batch(settings, size, batch // size)


def forecast_all(original: Settings, device: Device, ask: Ask, *, compiled: bool) -> list[tuple[Settings, Forecast]]:
    """The forecast of each candidate that can be built, those that do not fit included."""
    forecasts = []
    for settings in candidates(original, device, compiled=compiled):
        try:
            forecasts.append((settings, make_forecast(ask(settings, device))))
            give_back_memory()
        except ForerunError:
            continue  # not for this model or device
    return forecasts


def best_seconds(forecasts: list[tuple[Settings, Forecast]]) -> float | None:
    """Training and compiling of the fastest that fits; None when none fits."""
    fitting = [(settings, forecast) for settings, forecast in forecasts if forecast.fits]
    return min((whole_seconds(f) for _, f in fitting), default=None)


def whole_seconds(forecast: Forecast) -> float:
    """Training and compiling, without what is the same for all."""
    return forecast.run.phases.training_seconds + forecast.run.phases.compile_seconds
