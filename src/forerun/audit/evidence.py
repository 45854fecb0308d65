"""Claims that only a run or a source can decide: measurements, speed-ups, outcomes, whether a feature does anything."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from forerun.audit.arithmetic import RawQuantity, Unit, compare_in_unit, read_quantity, show_range
from forerun.audit.context import Context
from forerun.audit.findings import Check, Finding, Verdict, finding
from forerun.audit.quantities import Number, compare_quantities, show_number
from forerun.errors import nearest
from forerun.hardware.catalogue import device
from forerun.settings.schema import Count
from forerun.units import TERA, format_percent

NO_EFFECT = 1e-6
"""A relative size below which something changes nothing in fp32 (2^-23 is 1.2e-7)."""
FIXED = {
    "precision": "changes time, not what is learned: the study's scores cannot rank it",
    "seed": "is luck", "metric": "is what the study is judged by",
}  # fmt: skip


class MeasurementClaim(Check):
    """A number or a statement that only a measurement can support."""

    kind: Literal["measurement"]
    claimed: str
    evidence: str | None = None
    """The run's id, or the source, that it was measured by."""


def check_measurement(claim: MeasurementClaim, context: Context) -> Finding:
    """R25: unmeasured without a run or a source."""
    if claim.evidence is None:
        remark = "unmeasured: no run and no source is named"
        return finding("R25", "unsupported", right="–", formula=claim.claimed, remark=remark)
    return finding("R25", "consistent", right=claim.claimed, formula="as recorded", source=claim.evidence)


class SpeedUp(Check):
    """A gain in speed by a change of precision, of device, or of the program."""

    kind: Literal["speed-up"]
    claimed: Number
    """The gain as a factor: 1.15-1.3 for 15 to 30 %."""
    by: Literal["precision", "device", "program"] = "program"
    before: str = ""
    """Number format, or catalogue name of the device."""
    after: str = ""
    share_of_time: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the step that the change can make faster."""
    evidence: str | None = None


def check_speed_up(claim: SpeedUp, context: Context) -> Finding:
    """R14: below the ratio of peaks, by Amdahl's law over the share of time; R25: measured."""
    ratio, formula = _bound(claim, context)
    bound = None if ratio is None else 1 / (1 - claim.share_of_time + claim.share_of_time / ratio)
    if ratio is None and claim.share_of_time < 1:
        bound, formula = 1 / (1 - claim.share_of_time), f"1 / (1 - {claim.share_of_time:g})"
    right = "–" if bound is None else f"at most {show_number(bound)}x"
    if bound is not None and claim.claimed.low > bound * (1 + claim.claimed.tolerance):
        return finding("R14", "impossible", right=right, formula=formula, remark=f"{claim.claimed.text} is beyond it")
    if claim.evidence is None:
        return finding("R25", "unsupported", right=right, formula=formula, remark="possible; unmeasured")
    return finding("R14", "consistent", right=right, formula=formula, source=claim.evidence)


def _bound(claim: SpeedUp, context: Context) -> tuple[float | None, str]:
    if claim.by == "precision":
        over, under = context.peak(claim.after), context.peak(claim.before)
        return over / under, f"{claim.after} {over / TERA:g} / {claim.before} {under / TERA:g} TFLOP/s"
    if claim.by == "device":
        rates = [max(device(name).peak_flops_per_second.values()) for name in (claim.after, claim.before)]
        return rates[0] / rates[1], f"best peaks {rates[0] / TERA:g} / {rates[1] / TERA:g} TFLOP/s"
    return None, "no bound is known for a change of the program"


class OutcomeClaim(Check):
    """A forecast whose outcome is recorded."""

    kind: Literal["outcome"]
    claimed: RawQuantity
    recorded: RawQuantity
    unit: Unit = "number"
    source: str
    """Place where the outcome is recorded."""
    share_inside: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of outcomes that the claimed range is meant to hold; one outcome outside then contradicts nothing."""


def check_outcome(claim: OutcomeClaim, context: Context) -> Finding:
    """A forecast is missed where the recorded outcome lies outside it."""
    try:
        claimed, recorded = (
            read_quantity(claim.claimed, claim.unit, "claimed"),
            read_quantity(claim.recorded, claim.unit, "recorded"),
        )
    except ValueError:
        same = str(claim.claimed).strip().lower() == str(claim.recorded).strip().lower()
        verdict: Verdict = "consistent" if same else "wrong"
        why = "" if same else f"not {claim.claimed}"
        return finding(
            "recorded", verdict, right=str(claim.recorded), formula="recorded", remark=why, source=claim.source
        )
    agreement = compare_in_unit(claimed, recorded.low, recorded.high, claim.unit)
    right = show_range(recorded.low, recorded.high, claim.unit)
    if agreement != "apart":
        widths = claimed.high - claimed.low, recorded.high - recorded.low
        is_wider = widths[0] > 0 and widths[1] > widths[0] * (1 + claimed.tolerance)
        partly = agreement == "partly" or is_wider
        why = f"only part of it lies in {_text_of(claim.claimed)}" if partly else ""
        verdict = "unsupported" if partly else "consistent"
        return finding("recorded", verdict, right=right, formula="recorded", remark=why, source=claim.source)
    off = f", {recorded.middle / claimed.middle:.2f} times the claim" if claimed.middle and claimed.low > 0 else ""
    why = f"missed: {_text_of(claim.claimed)} was claimed{off}"
    if claim.share_inside is not None:
        why += f"; {1 - claim.share_inside:.0%} of outcomes are meant to lie outside"
        return finding("recorded", "unsupported", right=right, formula="recorded", remark=why, source=claim.source)
    return finding("recorded", "wrong", right=right, formula="recorded", remark=why, source=claim.source)


def _text_of(claimed: RawQuantity) -> str:
    return " to ".join(map(str, claimed)) if isinstance(claimed, list) else str(claimed)


class CriterionClaim(Check):
    """A criterion of a run as its verdict has it; what a run's report says of itself is decided there alone."""

    kind: Literal["criterion"]
    rule: str
    value: float
    passed: bool
    judged: bool = True
    """False where others' load forbids to judge a time."""
    open: str = ""
    """Why a criterion that passed may still be luck."""
    source: str


def check_criterion(claim: CriterionClaim, context: Context) -> Finding:
    """The verdict of the run: passed, failed, or not judged."""
    verdict: Verdict = "consistent" if claim.passed else "wrong" if claim.judged else "unsupported"
    verdict = "unsupported" if claim.passed and claim.open else verdict
    why = claim.open if claim.passed else "the criterion failed" if claim.judged else "not judged"
    return finding(
        "verdict", verdict, right=show_number(claim.value), formula=claim.rule, remark=why, source=claim.source
    )


class RunFigure(Check):
    """A figure that is said to be of a run in the ledger."""

    kind: Literal["run-figure"]
    run: str
    """The run's id, a unique beginning of it, or `last`."""
    quantity: str
    """A metric, or a field of the measurement such as step.seconds or memory.peak_allocated_bytes."""
    claimed: RawQuantity
    unit: Unit = "number"


def check_run_figure(claim: RunFigure, context: Context) -> Finding:
    """R25: the claimed figure beside the one in the ledger."""
    measured = context.measured(claim.run)
    fields = _figures(measured.model_dump())
    figures = {**{name: value for name, value in fields.items() if "." in name}, **measured.metrics}
    if claim.quantity not in figures:
        close = nearest(claim.quantity, sorted(figures))
        raise ValueError(f"quantity: run {claim.run} has no {claim.quantity!r}. Nearest: {close}")
    value = figures[claim.quantity]
    agreement = compare_in_unit(read_quantity(claim.claimed, claim.unit, "claimed"), value, value, claim.unit)
    verdict: Verdict = "consistent" if agreement == "agree" else "wrong"
    remark = "" if agreement == "agree" else f"not {claim.claimed}"
    right = show_range(value, value, claim.unit)
    return finding(
        "R25", verdict, right=right, formula=claim.quantity, remark=remark, source=f"ledger, run {claim.run}"
    )


def _figures(document: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of a nested document by their dotted path."""
    figures: dict[str, float] = {}
    for name, value in document.items():
        if isinstance(value, Mapping):
            figures |= _figures(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            figures[f"{prefix}{name}"] = value
    return figures


class Alive(Check):
    """A mechanism said to be active, and the size of its effect where somebody measured it."""

    kind: Literal["alive"]
    mechanism: str
    effect: float | None = None
    """Relative size: output over input, 1 - cosine of gradients with and without it, share of rows that change."""
    source: str


def check_alive(claim: Alive, context: Context) -> Finding:
    """R21: an effect of zero is none."""
    formula = f"effect of {claim.mechanism}"
    if claim.effect is None:
        return finding("R21", "unsupported", right="–", formula=formula, remark="nobody measured an effect")
    right = f"{claim.effect:.3g}"
    if abs(claim.effect) < NO_EFFECT:
        remark = f"{claim.mechanism} does nothing"
        return finding("R21", "wrong", right=right, formula=formula, remark=remark, source=claim.source)
    return finding("R21", "consistent", right=right, formula=formula, source=claim.source)


class SearchSpace(Check):
    """Parameters that a study searches over."""

    kind: Literal["search-space"]
    parameters: dict[str, Literal["live", "dead", "precision", "seed", "metric"]]
    """Parameter → what it is; `dead` where nothing reads it."""


def check_search_space(claim: SearchSpace, context: Context) -> Finding:
    """R19: every parameter is live, and none is the seed, the precision or the objective."""
    problems = [
        f"{name} {FIXED.get(what, 'is read by nothing')}" for name, what in claim.parameters.items() if what != "live"
    ]
    live = sum(what == "live" for what in claim.parameters.values())
    right = f"{live} of {len(claim.parameters)} belong in the search"
    verdict: Verdict = "wrong" if problems else "consistent"
    return finding("R19", verdict, right=right, formula=", ".join(claim.parameters), remark="; ".join(problems))


class Coverage(Check):
    """How much of something was checked of what is said to be."""

    kind: Literal["coverage"]
    claimed: Count
    checked: Annotated[int, Field(ge=0)]
    source: str
    """Place where the check is documented."""


def check_coverage(claim: Coverage, context: Context) -> Finding:
    """R25: as many as claimed."""
    right = f"{claim.checked} of {claim.claimed} ({format_percent(claim.checked / claim.claimed)})"
    remark = f"{claim.claimed - claim.checked} were not" if claim.checked < claim.claimed else ""
    verdict: Verdict = "wrong" if remark else "consistent"
    return finding("R25", verdict, right=right, formula="checked / claimed", remark=remark, source=claim.source)


class Rate(Check):
    """FLOP done in a time, as a run reports both."""

    kind: Literal["rate"]
    flops: float
    seconds: float
    peak_flops_per_second: float
    claimed: Number | None = None
    """Model FLOP utilisation, where it is stated."""


def check_rate(claim: Rate, context: Context) -> Finding:
    """R01: FLOP / seconds / peak."""
    share = claim.flops / claim.seconds / claim.peak_flops_per_second
    right = format_percent(share)
    formula = (
        f"{claim.flops / TERA:.4g} TFLOP in {claim.seconds:.4g} s at {claim.peak_flops_per_second / TERA:.4g} TFLOP/s"
    )
    if share > 1:
        return finding("R01", "impossible", right=right, formula=formula, remark="above the peak")
    agreement = "agree" if claim.claimed is None else compare_quantities(claim.claimed, share)
    remark = "" if agreement == "agree" or claim.claimed is None else f"not {claim.claimed.text}"
    return finding(
        "R01", "consistent" if agreement == "agree" else "wrong", right=right, formula=formula, remark=remark
    )


CHECKS = {
    MeasurementClaim: check_measurement, SpeedUp: check_speed_up, OutcomeClaim: check_outcome,
    RunFigure: check_run_figure, Alive: check_alive, SearchSpace: check_search_space, Coverage: check_coverage,
    Rate: check_rate, CriterionClaim: check_criterion,
}  # fmt: skip
