"""Forerun: know what a PyTorch training run will cost before you start it, then get exactly that."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forerun.api import forecast
    from forerun.forecasting.any_step import forecast_step
    from forerun.forecasting.virtual_cuda import virtual_cuda
    from forerun.forecasting.virtual_gpu import virtual_gpu
    from forerun.records import Forecast
    from forerun.settings.schema import Settings

__all__ = ["Forecast", "Settings", "forecast", "forecast_step", "virtual_cuda", "virtual_gpu"]

_HOMES = {
    "Forecast": "forerun.records",
    "Settings": "forerun.settings.schema",
    "forecast": "forerun.api",
    "forecast_step": "forerun.forecasting.any_step",
    "virtual_cuda": "forerun.forecasting.virtual_cuda",
    "virtual_gpu": "forerun.forecasting.virtual_gpu",
}


def __getattr__(name: str) -> Any:
    """Public names are imported on first use, so that the command line starts quickly."""
    import importlib

    if name == "load_ipython_extension":  # IPython looks for it here: `%load_ext forerun`
        return importlib.import_module("forerun.notebook").load_ipython_extension
    if name == "hf":  # forerun.hf needs no import of its own
        return importlib.import_module("forerun.hf")
    if name not in _HOMES:
        raise AttributeError(f"module 'forerun' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
