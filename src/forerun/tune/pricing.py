"""What will a trial cost? Memory and seconds, forecast before it runs; traced once for each kind of step.

Trials whose step differs in nothing that costs time share one trace (`Searchable.step_class`); everything else of the
forecast (number of steps, evaluations, lengths, corrections from the ledger) is made anew. A trial that does not fit is
refused; so is one that needs as much as a trial that ran out of memory did.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median, quantiles

from forerun.forecasting.forecast import make_forecast
from forerun.forecasting.request import ForecastRequest
from forerun.forecasting.step_model import StepModel, model_steps
from forerun.records import Forecast, Range
from forerun.runs.search_space import Searchable
from forerun.settings.schema import Settings
from forerun.trace import Call
from forerun.units import format_bytes

PROCESS_SECONDS = 10.0
"""Starting a process and ending it, beside the run, until a trial of the study has been measured; stated."""
LEAST_RATIOS = 5
"""Number of finished trials from which on their ratios widen the range."""


@dataclass(frozen=True)
class Price:
    """Forecast of one trial: its memory, and the seconds of all its folds."""

    settings: Settings
    """Settings of the trial with the data's sizes filled in."""
    forecast: Forecast
    seconds: Range
    """Seconds of all folds, with the processes around them."""
    is_traced: bool
    """Whether its step had to be traced."""
    pricing_seconds: float
    refusal: str | None = None
    """Why the trial must not run; None when it may."""

    @property
    def excess(self) -> float:
        """Memory wanted over memory there, minus 1; above 0 it does not fit."""
        memory = self.forecast.memory
        return memory.device_bytes.conservative / memory.capacity_bytes - 1


@dataclass(frozen=True)
class TrialCosts:
    """Seconds that finished trials of a study took, beside their prices."""

    overheads: tuple[float, ...] = ()
    """Seconds of a trial beside its runs, one number per trial."""
    ratios: tuple[float, ...] = ()
    """Seconds taken over seconds priced, one ratio per trial."""

    def around(self) -> float:
        """Median seconds of the processes around a run."""
        return median(self.overheads) if self.overheads else PROCESS_SECONDS

    def widened(self, seconds: Range) -> Range:
        """A range that also covers 80 % of what earlier prices missed by, once there are enough of them."""
        if len(self.ratios) < LEAST_RATIOS:
            return seconds
        low, *_, high = quantiles(self.ratios, n=10, method="inclusive")
        return Range(
            optimistic=min(seconds.optimistic, low * seconds.expected),
            expected=seconds.expected,
            conservative=max(seconds.conservative, high * seconds.expected),
        )


@dataclass
class Pricer:
    """Prices the trials of one study."""

    ask: Callable[[Settings], ForecastRequest]
    """The request of settings on the study's device, with what the ledger knows."""
    recipe: Searchable
    folds: int = 1
    step_models: dict[str, StepModel] = field(default_factory=dict)
    timed_calls: dict[Call, float] = field(default_factory=dict)
    """Operators that were timed on this machine, shared by all steps."""

    def price(self, settings: Settings, costs: TrialCosts, *, limit_bytes: float | None = None) -> Price:
        """Forecast a trial; `limit_bytes` is what one needed that ran out of memory."""
        start = time.perf_counter()
        request = self.ask(settings)
        key = self.key(request)
        is_new = key not in self.step_models
        if is_new:
            alike = self.recipe.step_class(request.settings)
            self.step_models[key] = model_steps(replace(self.ask(alike), plan=request.plan), self.timed_calls)
        forecast = make_forecast(request, self.step_models[key])
        run, around = forecast.run.seconds.model_dump(), costs.around()
        seconds = costs.widened(Range(**{name: (value + around) * self.folds for name, value in run.items()}))
        refusal = _refusal(forecast, limit_bytes)
        return Price(request.settings, forecast, seconds, is_new, time.perf_counter() - start, refusal)

    def key(self, request: ForecastRequest) -> str:
        """What trials with one step have in common: settings of the step, and the lengths of its batches."""
        alike = self.recipe.step_class(request.settings).model_dump(mode="json", exclude={"name", "seed"})
        shapes = sorted({shape.length for shape, number in request.plan.shapes if number})
        return json.dumps([alike, shapes[0], shapes[-1]], sort_keys=True)


def _refusal(forecast: Forecast, limit_bytes: float | None) -> str | None:
    memory = forecast.memory
    if not forecast.fits:
        return (
            f"needs up to {format_bytes(memory.device_bytes.conservative)}, {forecast.gpu} has "
            f"{format_bytes(memory.capacity_bytes)}"
        )
    if limit_bytes is not None and memory.device_bytes.expected >= limit_bytes:
        return (
            f"needs {format_bytes(memory.device_bytes.expected)}, and a trial that needed {format_bytes(limit_bytes)} "
            f"ran out of memory"
        )
    return None
