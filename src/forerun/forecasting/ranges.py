"""How sure a forecast of time is: three scenarios from what it rests on, narrower with every run that is known.

Optimistic and conservative are the 10 and 90 % quantiles of measured over forecast. Before any run is known they are
those of published or measured steps of the same group; then those of the log-normal that past runs leave.
"""

import json
import math
from functools import cache
from importlib.resources import files

from forerun.clock.costs import Costs
from forerun.experience import Correction, CorrectionTerm
from forerun.memory.overhead import uses_cudnn
from forerun.records import Range, RunPhases
from forerun.trace import Issuer, Trace

PROGRAM, SETTINGS = "program", "settings"
"""What a forecast was told: the program itself (a script, a Trainer, a step function), or a settings file, which says
less: kernels, library versions and lengths of real batches are left to defaults."""
SEVERAL, COMPILED, IMAGES, OTHER_GPU = "several-gpus", "compiled", "images", "other-gpu"
BOTH = "+"
"""Joins the names of two groups; the range is the least that holds both."""
TERM_SPREAD = {"data": 0.5, "evaluation": 0.4, "checkpoint": 0.5, "startup": 0.5, "compile": 0.4}
"""Standard deviation of the logarithm of measured over forecast before any run is known; stated."""
NINTH_DECILE = 1.2816
"""90 % quantile of the standard normal distribution."""
PHASE_TERMS = {f"{name}_seconds": name for name in ("startup", "compile", "evaluation", "checkpoint")}


@cache
def table() -> dict[str, list[float]]:
    """Group → optimistic and conservative share of the expected step, from `time_ranges.json`."""
    content = json.loads(files("forerun.forecasting").joinpath("time_ranges.json").read_text(encoding="utf-8"))
    return {name: entry["shares"] for name, entry in content["groups"].items()}


def group_of(trace: Trace, costs: Costs, stated: str) -> str:
    """The group of steps that a step is judged with, by what misses most: several ranks, compiled code, then image
    layers, then what it was told (PROGRAM or SETTINGS); and with OTHER_GPU where its products were not measured."""
    if costs.is_host:  # operators of this CPU
        return costs.evidence
    group = stated
    if trace.world_size > 1:
        group = SEVERAL
    elif any(call.issuer in (Issuer.COMPILED, Issuer.GRAPH) for call in trace.calls):
        group = COMPILED
    elif uses_cudnn(trace):
        group = IMAGES
    # those three were fitted to GPUs of measured architectures; what is told was to the measured GPUs themselves
    is_known = costs.evidence == "measured" or (group != stated and costs.evidence == "architecture")
    return group if is_known else f"{group}{BOTH}{OTHER_GPU}"


def shares(group: str, correction: Correction | None = None, term: str = "step") -> tuple[float, float]:
    """Optimistic and conservative share of an expected time."""
    fitted = _of_past_runs(correction, term)
    if fitted is not None:
        return math.exp(-NINTH_DECILE * fitted.spread), math.exp(NINTH_DECILE * fitted.spread)
    if term == "step":
        ends = [table()[part] for part in group.split(BOTH)]
        return min(low for low, _ in ends), max(high for _, high in ends)
    return math.exp(-NINTH_DECILE * TERM_SPREAD[term]), math.exp(NINTH_DECILE * TERM_SPREAD[term])


def spread(expected: float, low: float, high: float) -> Range:
    """Three scenarios around an expected time in seconds."""
    return Range(optimistic=expected * low, expected=expected, conservative=expected * high)


def shares_of(band: Range) -> tuple[float, float]:
    """Optimistic and conservative end as shares of what is expected; 1 and 1 of nothing."""
    return (band.optimistic / band.expected, band.conservative / band.expected) if band.expected else (1.0, 1.0)


def in_shares_of(band: Range, expected: float) -> Range:
    """Scenarios of what misses as `band` does."""
    return spread(expected, *shares_of(band))


def step_range(expected: float, group: str, hosts: tuple[float, float], correction: Correction | None = None) -> Range:
    """Scenarios of a step; it takes `hosts` of the `expected` seconds on a fast and on a slow host (`host_shares`),
    where past runs do not say how fast this one is."""
    low, high = shares(group, correction)
    if _of_past_runs(correction, "step") is None:
        low, high = min(low, hosts[0]), max(high, hosts[1])
    return spread(expected, low, high)


def _of_past_runs(correction: Correction | None, term: str) -> CorrectionTerm | None:
    """What past runs say of a term; None where there are none."""
    fitted = None if correction is None else correction.terms.get(term)
    return fitted if fitted is not None and fitted.runs else None


def run_range(phases: RunPhases, group: str, correction: Correction | None, step: Range) -> Range:
    """Range of a whole run: its phases miss independently of each other, so their widths add as squares.

    What belongs to no term of its own misses as the `step` does.
    """
    seconds = phases.model_dump()
    expected, below, above = sum(seconds.values()), 0.0, 0.0
    for name, value in seconds.items():
        term = PHASE_TERMS.get(name)
        low, high = shares_of(step) if term is None else shares(group, correction, term)
        below += (value * (1 - low)) ** 2
        above += (value * (high - 1)) ** 2
    return Range(optimistic=expected - math.sqrt(below), expected=expected, conservative=expected + math.sqrt(above))
