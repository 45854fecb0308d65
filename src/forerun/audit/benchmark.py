"""Claims drawn from a benchmark: whether it has the shape of what it stands for, keeps the device busy, and repeats."""

from typing import Literal

from forerun.audit.architecture import count_architecture
from forerun.audit.context import Context
from forerun.audit.findings import Check, Finding, finding
from forerun.audit.quantities import Duration, show_seconds
from forerun.settings.schema import Count
from forerun.units import MILLI, TERA, format_percent

BUSY = 0.10
"""Share of the peak below which launches, not arithmetic, take the time; stated (R18)."""
REPEATS = 5
"""Least repeats of a measurement that is to have an interval; stated (R18)."""


class Benchmark(Check):
    """A measurement of speed said to stand for training."""

    kind: Literal["benchmark"]
    model: str
    measures: Literal["inference", "training"]
    stands_for: Literal["inference", "training"]
    samples: Count
    tokens: float
    """Tokens of a sample, as it really was."""
    dtype: str = "float32"
    seconds: Duration
    """Time of one iteration."""
    iterations: Count
    repeats: Count = 1
    source: str = ""


def check_benchmark(claim: Benchmark, context: Context) -> Finding:
    """R18: share of the peak, the kind of step, and whether there is an interval."""
    flops = claim.samples * claim.tokens * count_architecture(claim.model).forward_flops(claim.tokens)
    flops *= 3 if claim.measures == "training" else 1
    share = flops / context.peak(claim.dtype) / claim.seconds.middle
    right = f"{format_percent(share)} of peak; {claim.repeats} repeats of {claim.iterations}"
    formula = (
        f"{claim.samples} x {claim.tokens:g} tokens, {flops / TERA / MILLI:,.1f} GFLOP in "
        f"{show_seconds(claim.seconds.middle)}"
    )
    if claim.measures != claim.stands_for or share < BUSY:
        problems = [f"{claim.measures} is not {claim.stands_for}"] if claim.measures != claim.stands_for else []
        problems += ["launches, not arithmetic, take the time"] if share < BUSY else []
        return finding(
            "R18", "wrong", right=right, formula=formula, remark="; ".join(problems), source=claim.source or None
        )
    if claim.repeats < 2:
        return finding("R18", "unsupported", right=right, formula=formula, remark="one repeat has no interval")
    return finding("R18", "consistent", right=right, formula=formula)


class Repeats(Check):
    """How often something was measured."""

    kind: Literal["repeats"]
    iterations: Count
    repeats: Count = 1


def check_repeats(claim: Repeats, context: Context) -> Finding:
    """R18: an interval needs repeats, not iterations."""
    remark = f"{claim.repeats} of {REPEATS} repeats: no interval" if claim.repeats < REPEATS else ""
    formula = f"{claim.repeats} x {claim.iterations} iterations"
    return finding(
        "R18",
        "unsupported" if remark else "consistent",
        right=f"at least {REPEATS} repeats",
        formula=formula,
        remark=remark,
    )


CHECKS = {Benchmark: check_benchmark, Repeats: check_repeats}
