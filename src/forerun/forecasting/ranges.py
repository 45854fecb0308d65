"""How sure a forecast of time is: three scenarios from what it rests on, narrower with every run that is known.

Optimistic and conservative are the 10 and 90 % quantiles: of errors on published or measured steps by class of
evidence, or of the log-normal that past runs leave.
"""

import math

from forerun.experience import Correction
from forerun.records import Range, RunPhases

TIME_SPREAD = {
    "measured": (0.91, 1.09),
    "architecture": (0.82, 1.25),
    "unseen": (0.82, 1.25),
    "timed": (0.97, 1.23),
    "calibrated": (0.97, 1.23),
}
"""Optimistic and conservative share of the expected time, by what the rates rest on. Products measured on this GPU: the
10 and 90 % quantiles of 50 published steps; 13 of 14 held out lie inside. Other GPUs: wider than the extremes of seven
steps (0.85 to 1.18), which are few.
Operators timed here: the same quantiles of the 30 steps in `benchmarks/cpu_steps.json`."""
TERM_SPREAD = {"data": 0.5, "evaluation": 0.4, "checkpoint": 0.5, "startup": 0.5, "compile": 0.4}
"""Standard deviation of the logarithm of measured over forecast before any run is known; stated."""
NINTH_DECILE = 1.2816
"""90 % quantile of the standard normal distribution."""
PHASE_TERMS = {f"{name}_seconds": name for name in ("startup", "compile", "evaluation", "checkpoint")}


def shares(evidence: str, correction: Correction | None = None, term: str = "step") -> tuple[float, float]:
    """Optimistic and conservative share of an expected time."""
    fitted = None if correction is None else correction.terms.get(term)
    if fitted is not None and fitted.runs:
        return math.exp(-NINTH_DECILE * fitted.spread), math.exp(NINTH_DECILE * fitted.spread)
    if term == "step":
        return TIME_SPREAD[evidence]
    return math.exp(-NINTH_DECILE * TERM_SPREAD[term]), math.exp(NINTH_DECILE * TERM_SPREAD[term])


def spread(expected: float, low: float, high: float) -> Range:
    """Three scenarios around an expected time in seconds."""
    return Range(optimistic=expected * low, expected=expected, conservative=expected * high)


def run_range(phases: RunPhases, evidence: str, correction: Correction | None) -> Range:
    """Range of a whole run: its phases miss independently of each other, so their widths add as squares."""
    seconds = phases.model_dump()
    expected, below, above = sum(seconds.values()), 0.0, 0.0
    for name, value in seconds.items():
        low, high = shares(evidence, correction, PHASE_TERMS.get(name, "step"))
        below += (value * (1 - low)) ** 2
        above += (value * (high - 1)) ** 2
    return Range(optimistic=expected - math.sqrt(below), expected=expected, conservative=expected + math.sqrt(above))
