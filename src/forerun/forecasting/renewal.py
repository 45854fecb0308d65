"""How long does a run take that is interrupted now and then and goes on from its last durable checkpoint?

Interruptions come as a Poisson process, with `mean_seconds` between two, also during restarts and writing. Training
stands still `wait_seconds` at a checkpoint, which is durable `lag_seconds` after that. An interruption loses all since
the last durable one. By renewal: from one durable checkpoint to the next, with u = interval + wait, the mean is
M (1 - exp(-u/M)) exp((restart + u + lag)/M), Daly's complete model with the lag added to the restart. All in seconds.

Source: Young, CACM 17(9), 1974, doi:10.1145/361147.361115; Daly, FGCS 22(3), 2006, doi:10.1016/j.future.2004.11.016.
Not covered: failures that come together or more often at first, errors that are noticed late.
"""

import math
from dataclasses import dataclass, replace

LARGEST_EXPONENT = 700.0
"""Of what a float holds; a run whose restarts last so many times longer than it is left alone never ends."""


@dataclass(frozen=True)
class InterruptedRun:
    """A run cut into intervals of work, a checkpoint after each; the last may be shorter."""

    work_seconds: float
    interval_seconds: float
    """Work between checkpoints."""
    mean_seconds: float
    """Between interruptions; infinite for none."""
    wait_seconds: float = 0.0
    lag_seconds: float = 0.0
    startup_seconds: float = 0.0
    """Before the first step."""
    restart_seconds: float = 0.0

    @property
    def expected_seconds(self) -> float:
        """Mean time to the last durable checkpoint; infinite where the run hardly ever gets on."""
        first, between, last = self._intervals()
        mean, lag = self.mean_seconds, self.lag_seconds
        if math.isinf(mean):
            return self.startup_seconds + first + between[0] * between[1] + last + lag
        again = [self.restart_seconds + u + lag for u in (first, between[1], last)]
        if max(again) / mean > LARGEST_EXPONENT:
            return math.inf
        parts = [
            _share(self.startup_seconds + first + lag, mean) * math.exp(again[0] / mean),
            between[0] * _share(between[1], mean) * math.exp(again[1] / mean),
            _share(last, mean) * math.exp(again[2] / mean),
        ]
        return mean * sum(parts)

    @property
    def undisturbed_seconds(self) -> float:
        """The same run without interruptions."""
        return replace(self, mean_seconds=math.inf).expected_seconds

    def _intervals(self) -> tuple[float, tuple[int, float], float]:
        """Seconds between checkpoints: the first, number and length of those between, and the last (0 for none)."""
        count = max(1, math.ceil(self.work_seconds / self.interval_seconds - 1e-9))
        if count == 1:
            return self.work_seconds + self.wait_seconds, (0, 0.0), 0.0
        # A checkpoint waits for the one before it to be written.
        whole = max(self.interval_seconds + self.wait_seconds, self.lag_seconds)
        rest = self.work_seconds - (count - 1) * self.interval_seconds
        return whole, (count - 2, whole), max(rest + self.wait_seconds, self.lag_seconds)


def _share(seconds: float, mean: float) -> float:
    return -math.expm1(-seconds / mean)


def young_interval(wait_seconds: float, mean_seconds: float) -> float:
    """Work between checkpoints that makes a run shortest, to first order, in seconds."""
    return math.sqrt(2 * wait_seconds * mean_seconds)


def daly_interval(wait_seconds: float, mean_seconds: float) -> float:
    """Work between checkpoints that makes a run shortest, by Daly's perturbation to higher order, in seconds."""
    if wait_seconds >= 2 * mean_seconds:
        return mean_seconds
    small = math.sqrt(wait_seconds / (2 * mean_seconds))
    return young_interval(wait_seconds, mean_seconds) * (1 + small / 3 + small**2 / 9) - wait_seconds


def best_every_steps(run: InterruptedRun, step_seconds: float, total_steps: int) -> int:
    """Steps between checkpoints that make `run` shortest: one of the two beside Daly's interval, which cannot be less
    than a checkpoint takes to be written."""
    if math.isinf(run.mean_seconds):
        return total_steps
    least = max(run.lag_seconds - run.wait_seconds, daly_interval(run.wait_seconds, run.mean_seconds))
    low = min(total_steps, max(1, math.floor(least / step_seconds)))
    if low * step_seconds + run.wait_seconds < run.lag_seconds:
        return min(total_steps, low + 1)
    around = {low, min(total_steps, low + 1)}
    return min(around, key=lambda n: replace(run, interval_seconds=n * step_seconds).expected_seconds)
