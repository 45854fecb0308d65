"""Claims about scores: losses and their floors, targets and trivial baselines, differences and their noise."""

import math
from statistics import NormalDist
from typing import Annotated, Literal

from pydantic import Field

from forerun.audit.context import Context
from forerun.audit.findings import Check, Finding, Verdict, finding, verdict_of
from forerun.audit.quantities import Number, compare_quantities, show_number
from forerun.evaluate.proportions import samples_needed, wilson
from forerun.settings.schema import Count
from forerun.units import format_percent

NEAR_CHANCE, SKILL = 0.97, 0.60
"""A loss above the first share of chance says nothing; an AUC above the second says something (R04)."""
PREVALENCES = (0.10,)
"""Shares of positives at which a finding adds what a positive answer is worth."""
LEAK_AUC = 0.55
"""AUC above which metadata alone gives a label away (R22)."""
GRID = 2000
"""Points of the numerical integral over the scores of a class."""


class ContrastiveLossClaim(Check):
    """A contrastive loss whose positives are the samples of the same class in a batch."""

    kind: Literal["contrastive-loss"]
    claimed: list[Number]
    classes: Annotated[int, Field(ge=2)]
    """Classes, of equal size in a batch; the floor of uneven ones is higher."""
    batch: int | None = None
    keeps_self: bool = False
    """Whether the anchor itself stays in the denominator."""


def check_contrastive_loss(claim: ContrastiveLossClaim, context: Context) -> Finding:
    """R04: with P positives the mean over them of -log softmax is at least log P, log(P + 1) with the anchor kept."""
    batch = claim.batch or context.run.batch.micro_batch_size
    positives = batch // claim.classes - 1
    if positives < 1:
        raise ValueError(f"classes: leaves each sample a positive; found {claim.classes} in a batch of {batch}")
    floor = math.log(positives + (1 if claim.keeps_self else 0))
    below = [loss.text for loss in claim.claimed if loss.high < floor * (1 - loss.tolerance)]
    formula = f"log({positives}{' + 1' if claim.keeps_self else ''}), {positives} positives in a batch of {batch}"
    remark = f"{', '.join(below)} lie below the floor" if below else ""
    return finding(
        "R04", "impossible" if below else "consistent", right=f"at least {floor:.2f}", formula=formula, remark=remark
    )


class Floor(Check):
    """A loss, or the size of an effect, beside the least that it can be."""

    kind: Literal["floor"]
    name: str
    claimed: Number
    floor: float
    evidence: str | None = None


def check_floor(claim: Floor, context: Context) -> Finding:
    """R04: the loss is not below its floor."""
    right, formula = f"at least {claim.floor:.4g}", f"floor of {claim.name}"
    if claim.claimed.high < claim.floor * (1 - claim.claimed.tolerance):
        remark = f"{claim.claimed.text} lies below it"
        return finding("R04", "impossible", right=right, formula=formula, remark=remark, source=claim.evidence)
    return finding("R04", "consistent", right=right, formula=formula, source=claim.evidence)


class ClassificationLoss(Check):
    """A cross-entropy beside an AUC of the same predictions."""

    kind: Literal["classification-loss"]
    loss: Number
    classes: Annotated[int, Field(ge=2)] = 2
    auc: Number | None = None


def check_classification_loss(claim: ClassificationLoss, context: Context) -> Finding:
    """R04: chance is log(classes); at a binary AUC, what a calibrated score with equal normal classes would have."""
    chance = math.log(claim.classes)
    right, formula = f"chance {chance:.3f}", f"ln {claim.classes}"
    if claim.loss.high < 0:
        return finding(
            "R04", "impossible", right="at least 0", formula=formula, remark="a cross-entropy is never negative"
        )
    if claim.auc is None or claim.classes != 2:
        return finding("R04", "consistent", right=right, formula=formula)
    calibrated = _calibrated_loss(claim.auc.middle)
    right += f", calibrated at this AUC {calibrated:.3f}"
    if claim.loss.middle > NEAR_CHANCE * chance and claim.auc.middle > SKILL:
        remark = "at chance beside a ranking with skill: possible only for scores that mean nothing"
        return finding("R04", "unsupported", right=right, formula=formula, remark=remark)
    return finding("R04", "consistent", right=right, formula=formula)


def _calibrated_loss(auc: float) -> float:
    """Cross-entropy of the true probability for two normal classes of equal spread and size, whose AUC is `auc`."""
    normal = NormalDist()
    distance = math.sqrt(2) * normal.inv_cdf(min(max(auc, 0.5), 1 - 1e-9))
    points = [-6 + (12 + distance) * (i + 0.5) / GRID for i in range(GRID)]
    width = (12 + distance) / GRID
    return sum(
        width * normal.pdf(x - distance) * math.log1p(math.exp(distance * distance / 2 - distance * x)) for x in points
    )


class Metric(Check):
    """A target or result beside what costs nothing."""

    kind: Literal["metric"]
    name: str
    claimed: Number
    higher_is_better: bool = True
    baselines: dict[str, float] = {}
    """Trivial methods → their score."""
    source: str = ""
    """Source of the baselines."""
    samples: Count | None = None
    """Number of scored samples, where the metric is a share of them."""
    evidence: str | None = None


PREVALENCE_METRICS = ("pr-auc", "average-precision", "precision")


def check_metric(claim: Metric, context: Context) -> Finding:
    """R11: better than the best trivial one; R12: by more than its noise; R25: measured."""
    if not claim.baselines:
        what = (
            "its baseline is the prevalence"
            if claim.name.lower() in PREVALENCE_METRICS
            else "no trivial baseline is given"
        )
        return finding("R11", "unsupported", right="–", formula=claim.name, remark=f"cannot be read: {what}")
    name, best = max(claim.baselines.items(), key=lambda item: item[1] if claim.higher_is_better else -item[1])
    right, formula = f"{name}: {best:g}", f"{claim.name} {claim.claimed.text} beside {name}"
    source = claim.source or None
    worst = claim.claimed.low if claim.higher_is_better else claim.claimed.high
    if worst <= best if claim.higher_is_better else worst >= best:
        reached = claim.claimed.high <= best if claim.higher_is_better else claim.claimed.low >= best
        is_limit = math.isinf(claim.claimed.low) or math.isinf(claim.claimed.high)
        remark = f"a trivial method reaches {best:g}" if reached or is_limit else f"it may be no better than {name}"
        verdict: Verdict = "wrong" if reached or is_limit else "unsupported"
        return finding("R11", verdict, right=right, formula=formula, remark=remark, source=source)
    if claim.samples is not None and 0 <= claim.claimed.middle <= 1:
        interval = wilson(claim.claimed.middle * claim.samples, claim.samples)
        if interval.low <= best <= interval.high:
            remark = f"within noise of {name}: 95 % interval {interval.low:.3f} to {interval.high:.3f}"
            return finding("R12", "wrong", right=right, formula=f"Wilson, n = {claim.samples}", remark=remark)
    if claim.evidence is None:
        return finding("R25", "unsupported", right=right, formula=formula, remark="not measured", source=source)
    return finding("R11", "consistent", right=right, formula=formula, source=source)


class DifferenceClaim(Check):
    """Two shares of successes said to differ."""

    kind: Literal["difference"]
    first: Number
    second: Number
    samples: Count
    """Samples in each group."""


def check_difference(claim: DifferenceClaim, context: Context) -> Finding:
    """R13: samples in each group that would tell them apart."""
    required_samples = samples_needed(claim.first.middle, claim.second.middle)
    formula = f"{claim.first.text} against {claim.second.text}, 5 %, power 80 %"
    if required_samples is None:
        return finding("R13", "wrong", right="no difference", formula=formula, remark="both are the same")
    remark = f"cannot be told with {claim.samples}" if required_samples > claim.samples else ""
    verdict: Verdict = "wrong" if remark else "consistent"
    return finding("R13", verdict, right=f"{required_samples:,} samples in each group", formula=formula, remark=remark)


class ErrorRates(Check):
    """A false positive rate beside an accuracy."""

    kind: Literal["error-rates"]
    false_positive_rate: Number
    accuracy: Number
    prevalence: Number | None = None
    """Share of positives in the test data; equal classes without it."""


def check_error_rates(claim: ErrorRates, context: Context) -> Finding:
    """R03: the true positive rate that both leave; what finding a rare positive is worth."""
    share = 0.5 if claim.prevalence is None else claim.prevalence.middle
    rate, accuracy = claim.false_positive_rate.middle, claim.accuracy.middle
    true_positive_rate = (accuracy - (1 - share) * (1 - rate)) / share
    formula = f"({accuracy:.3g} - {1 - share:g} x {1 - rate:.3g}) / {share:g}"
    if not 0 <= true_positive_rate <= 1:
        remark = "no true positive rate goes with both"
        return finding("R03", "impossible", right=f"{true_positive_rate:.2f}", formula=formula, remark=remark)
    rare = PREVALENCES[0]
    value = rare * true_positive_rate / (rare * true_positive_rate + (1 - rare) * rate)
    remark = f"where {format_percent(rare)} are positive, only {format_percent(value)} of those found are"
    return finding(
        "R03", "consistent", right=f"true positive rate {true_positive_rate:.2f}", formula=formula, remark=remark
    )


class TextTokensClaim(Check):
    """A number of tokens, beside the longest text that it can be of."""

    kind: Literal["text-tokens"]
    claimed: Number
    longest: str
    """A text as long as the format allows."""
    special: int = 2
    """Tokens that the tokeniser adds."""


def check_text_tokens(claim: TextTokensClaim, context: Context) -> Finding:
    """A tokeniser over bytes never makes more tokens than there are bytes."""
    most = len(claim.longest.encode()) + claim.special
    right, formula = f"at most {most}", f"{most - claim.special} bytes + {claim.special}"
    source = "Sennrich et al. 2016; byte fallback as in Kudo and Richardson 2018"
    if claim.claimed.low > most:
        remark = f"{claim.claimed.text} tokens do not fit into the longest text"
        return finding("R01", "impossible", right=right, formula=formula, remark=remark, source=source)
    verdict = verdict_of(compare_quantities(claim.claimed, 1, most), worst="unsupported")
    return finding("R01", verdict, right=right, formula=formula, source=source)


class Leak(Check):
    """How well metadata alone tells the label."""

    kind: Literal["leak"]
    auc: Number
    """AUC of a probe that sees no content."""
    source: str


def check_leak(claim: Leak, context: Context) -> Finding:
    """R22: an AUC of metadata above 0.55."""
    leaks = claim.auc.middle > LEAK_AUC
    remark = "metadata gives the label away; scores of content say nothing" if leaks else ""
    right = f"AUC {show_number(claim.auc.middle)}, chance 0.5"
    verdict: Verdict = "wrong" if leaks else "consistent"
    return finding("R22", verdict, right=right, formula="metadata probe", remark=remark, source=claim.source)


CHECKS = {
    ContrastiveLossClaim: check_contrastive_loss, Floor: check_floor, ClassificationLoss: check_classification_loss,
    Metric: check_metric, DifferenceClaim: check_difference, ErrorRates: check_error_rates,
    TextTokensClaim: check_text_tokens, Leak: check_leak,
}  # fmt: skip
