"""How long does training in progress still take? A range from the forecast and, ever more, from its own steps.

The forecast counts as `PRIOR_STEPS` steps; checkpoints and evaluations between epochs are spread evenly over the steps,
and what is scored after training is not in it. The range is the 10 and 90 % quantile of a mean of so many steps, and
never surer than `DRIFT`: machines change their pace.
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable

from forerun.forecasting.ranges import NINTH_DECILE
from forerun.records import Forecast, Range, StepReport

RECENT_STEPS = 200
"""Number of latest steps that count."""
PRIOR_STEPS = 4
"""Steps that the forecast counts as."""
DRIFT = 0.05
"""Relative standard deviation of the pace that stays however many steps were timed; stated, not measured."""


class TimeLeft:
    """Seconds of training left after each step; the range shown half-way is compared with what the rest took."""

    def __init__(self, forecast: Forecast, total_steps: int, clock: Callable[[], float] = time.perf_counter):
        phases, after = forecast.run.phases, forecast.detail.final_evaluation_seconds
        self._forecast_step = forecast.step.seconds.expected
        self._beside = (phases.evaluation_seconds - after + phases.checkpoint_seconds) / max(1, total_steps)
        self._total, self._clock = total_steps, clock
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)
        self._half_way: tuple[float, float] | None = None
        self.half_way_error: float | None = None
        """(shown - taken) / taken of the seconds left at half of the run; None before the end, and for a run that was
        resumed after its half."""

    def after(self, report: StepReport) -> Range:
        """Seconds of training left after the step of `report`."""
        if report.is_warm or not self._recent:
            self._recent.append(report.step_seconds)
        left = self._total - report.step
        remaining = self._range(left)
        if report.step == (self._total + 1) // 2:
            self._half_way = self._clock(), remaining.expected
        if left == 0 and self._half_way is not None:
            at, promise = self._half_way
            elapsed = self._clock() - at
            self.half_way_error = promise / elapsed - 1 if elapsed > 0 else None
        return remaining

    def _range(self, left: int) -> Range:
        count = len(self._recent)
        mean = (sum(self._recent) + PRIOR_STEPS * self._forecast_step) / (count + PRIOR_STEPS)
        deviation = statistics.stdev(self._recent) if count > 1 else mean / 2
        # Variance of `left` steps, plus that of their mean as estimated, plus drift of the machine.
        width = NINTH_DECILE * math.sqrt(
            left * deviation**2 + (left * deviation) ** 2 / (count + PRIOR_STEPS) + (left * mean * DRIFT) ** 2
        )
        expected = left * (mean + self._beside)
        return Range(optimistic=max(0.0, expected - width), expected=expected, conservative=expected + width)
