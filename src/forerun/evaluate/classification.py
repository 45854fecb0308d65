"""How well scores separate two classes, by exact definitions; no thresholds are chosen on the rows that are reported.

Labels are 0 (human) and 1 (AI), scores are probabilities of 1, groups are what may not be torn apart when resampling.

- ROC-AUC = P(score of a positive > score of a negative) + ½ P(tie).
- Average precision = Σ (recall step) · precision over distinct scores; no trapezoids. Chance is the prevalence.
- Operating points: the threshold admits at most the wanted share of false positives *on validation*; both rates are
  then measured on test, the false-positive rate with its Clopper-Pearson 95 % interval (Biometrika 1934).
- Calibration: expected calibration error over 15 bins of equal mass, and the Brier score.
- Intervals of an AUC and of the difference of two: 2.5 and 97.5 % quantiles over bootstrap samples of whole groups.

**Not covered:** more than two classes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerun.records import Record

Floats = NDArray[np.float64]

FALSE_POSITIVE_RATES = (0.01, 0.05)
CALIBRATION_BINS = 15
BOOTSTRAP_SAMPLES = 400
DECISION = 0.5
"""Probability above which a row counts as AI for accuracy and F1."""
STATED_PREVALENCE = 0.10
"""Share of AI-written files at which precision is quoted: a class in which one in ten cheats."""


@dataclass(frozen=True)
class Scored:
    """Rows of one split with their scores, all of one length."""

    labels: NDArray[np.int64]
    scores: Floats
    groups: tuple[str, ...]

    def __post_init__(self) -> None:
        if not len(self.labels) == len(self.scores) == len(self.groups) > 0:
            raise ValueError(
                f"one label, score and group a row; found {len(self.labels)}, {len(self.scores)}, {len(self.groups)}"
            )
        if not np.isfinite(self.scores).all():
            raise ValueError("scores must be finite")

    def where(self, mask: Sequence[bool] | NDArray[np.bool_]) -> "Scored":
        """The rows that `mask` selects."""
        rows = np.flatnonzero(np.asarray(mask))
        return Scored(self.labels[rows], self.scores[rows], tuple(self.groups[row] for row in rows))


class OperatingPoint(Record):
    """One threshold, chosen on validation; rates on test."""

    wanted_fpr: float
    threshold: float
    tpr: float
    fpr: float
    fpr_low: float
    fpr_high: float
    precision_at_stated_prevalence: float | None
    """Share of flagged files that are AI-written where 10 % of all are; null when nothing is flagged."""


class Difference(Record):
    """A paired difference with its 95 % interval."""

    value: float
    low: float
    high: float


class SliceReport(Record):
    """One part of the test rows; the AUC is null where a class is missing."""

    samples: int
    prevalence: float
    roc_auc: float | None
    accuracy: float


class ClassificationReport(Record):
    """All figures of one classifier on the test rows."""

    samples: int
    prevalence: float
    roc_auc: float
    roc_auc_low: float
    roc_auc_high: float
    average_precision: float
    accuracy: float
    f1: float
    expected_calibration_error: float
    brier: float
    operating_points: list[OperatingPoint]
    slices: dict[str, SliceReport] = {}

    def metrics(self, prefix: str = "") -> dict[str, float]:
        """The headline figures as one flat table, for a measurement."""
        names = ("roc_auc", "roc_auc_low", "roc_auc_high", "average_precision", "accuracy", "f1", "brier")
        table = {f"{prefix}{name}": float(getattr(self, name)) for name in names}
        table[f"{prefix}expected_calibration_error"] = self.expected_calibration_error
        for point in self.operating_points:
            percent = f"{point.wanted_fpr * 100:g}"
            table[f"{prefix}tpr_at_{percent}_percent_fpr"] = point.tpr
            table[f"{prefix}fpr_at_{percent}_percent_fpr"] = point.fpr
        for name, part in self.slices.items():
            if part.roc_auc is not None:
                table[f"{prefix}roc_auc[{name}]"] = part.roc_auc
        return table


def report(validation: Scored, test: Scored, slices: dict[str, Sequence[str]] | None = None) -> ClassificationReport:
    """Every figure of `test`, thresholds from `validation`; `slices` names for each test row its part, by attribute.

    Raises:
        ValueError: a split has only one class.
    """
    low, high = bootstrap_auc(test)
    predicted = test.scores > DECISION
    return ClassificationReport(
        samples=len(test.labels),
        prevalence=float(test.labels.mean()),
        roc_auc=roc_auc(test.labels, test.scores),
        roc_auc_low=low,
        roc_auc_high=high,
        average_precision=average_precision(test.labels, test.scores),
        accuracy=float((predicted == (test.labels == 1)).mean()),
        f1=f1_score(test.labels, predicted),
        expected_calibration_error=expected_calibration_error(test.labels, test.scores),
        brier=float(np.mean((test.scores - test.labels) ** 2)),
        operating_points=[operating_point(validation, test, rate) for rate in FALSE_POSITIVE_RATES],
        slices={
            f"{attribute}={value}": _slice(test.where([part == value for part in parts]))
            for attribute, parts in (slices or {}).items()
            for value in sorted(set(parts))
        },
    )


def roc_auc(labels: ArrayLike, scores: ArrayLike, weights: ArrayLike | None = None) -> float:
    """P(score of a positive > score of a negative) + ½ P(tie); rows may carry weights.

    Raises:
        ValueError: only one class is present.
    """
    positive, negative = _mass_per_score(labels, scores, weights)
    if not positive.sum() or not negative.sum():
        raise ValueError("ROC-AUC needs rows of both classes")
    below = np.cumsum(negative) - negative
    return float((positive * (below + negative / 2)).sum() / (positive.sum() * negative.sum()))


def average_precision(labels: ArrayLike, scores: ArrayLike) -> float:
    """Σ (recall step) · precision from the highest score down; rows of one score enter together."""
    positive, negative = _mass_per_score(labels, scores, None)
    true_positives = np.cumsum(positive[::-1])
    flagged = np.cumsum((positive + negative)[::-1])
    return float((positive[::-1] * true_positives / flagged).sum() / positive.sum())


def f1_score(labels: NDArray[np.int64], predicted: NDArray[np.bool_]) -> float:
    """Harmonic mean of precision and recall of class 1; 0 when nothing is found."""
    hits = int((predicted & (labels == 1)).sum())
    return 2 * hits / (int(predicted.sum()) + int((labels == 1).sum())) if hits else 0.0


def threshold_at(validation: Scored, wanted_fpr: float) -> float:
    """The lowest threshold above which at most `wanted_fpr` of the validation negatives score."""
    negatives = np.sort(validation.scores[validation.labels == 0])[::-1]
    allowed = int(np.floor(wanted_fpr * len(negatives)))
    return float(negatives[min(allowed, len(negatives) - 1)])


def operating_point(validation: Scored, test: Scored, wanted_fpr: float) -> OperatingPoint:
    """Threshold from `validation`, rates on `test`."""
    threshold = threshold_at(validation, wanted_fpr)
    flagged = test.scores > threshold
    negatives, positives = test.labels == 0, test.labels == 1
    false, all_negatives = int((flagged & negatives).sum()), int(negatives.sum())
    tpr, fpr = float(flagged[positives].mean()), false / all_negatives
    low, high = clopper_pearson(false, all_negatives)
    right, wrong = tpr * STATED_PREVALENCE, fpr * (1 - STATED_PREVALENCE)
    return OperatingPoint(
        wanted_fpr=wanted_fpr,
        threshold=threshold,
        tpr=tpr,
        fpr=fpr,
        fpr_low=low,
        fpr_high=high,
        precision_at_stated_prevalence=right / (right + wrong) if right + wrong else None,
    )


def clopper_pearson(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact interval of a proportion."""
    from scipy.stats import beta

    tail = (1 - confidence) / 2
    low = 0.0 if hits == 0 else float(beta.ppf(tail, hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(beta.ppf(1 - tail, hits + 1, trials - hits))
    return low, high


def expected_calibration_error(labels: ArrayLike, scores: ArrayLike, bins: int = CALIBRATION_BINS) -> float:
    """Mean gap between score and share of positives over bins of equal mass, weighted by their rows."""
    scores, labels = np.asarray(scores, dtype=float), np.asarray(labels, dtype=float)
    order = np.argsort(scores, kind="stable")
    gaps = [
        len(part) * abs(float(scores[part].mean() - labels[part].mean()))
        for part in np.array_split(order, bins)
        if len(part)
    ]
    return sum(gaps) / len(scores)


def bootstrap_auc(test: Scored, samples: int = BOOTSTRAP_SAMPLES) -> tuple[float, float]:
    """95 % interval of the AUC over resampled groups."""
    return _interval([roc_auc(test.labels, test.scores, weights) for weights in _resampled(test, samples)])


def auc_difference(test: Scored, rival: Floats, samples: int = BOOTSTRAP_SAMPLES) -> Difference:
    """AUC of `test.scores` minus that of the `rival` scores of the same rows; both see the same resampled groups."""
    differences = [
        roc_auc(test.labels, test.scores, weights) - roc_auc(test.labels, rival, weights)
        for weights in _resampled(test, samples)
    ]
    low, high = _interval(differences)
    value = roc_auc(test.labels, test.scores) - roc_auc(test.labels, rival)
    return Difference(value=value, low=low, high=high)


def _resampled(test: Scored, samples: int, seed: int = 0) -> Iterator[Floats]:
    """Weights of the rows in draws of whole groups with replacement; draws without one of the classes are skipped."""
    _, group = np.unique(np.asarray(test.groups), return_inverse=True)
    number = int(group.max()) + 1
    random = np.random.default_rng(seed)
    for _ in range(samples):
        weights = np.bincount(random.integers(0, number, number), minlength=number)[group].astype(float)
        if weights[test.labels == 1].any() and weights[test.labels == 0].any():
            yield weights


def _interval(values: list[float]) -> tuple[float, float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def _slice(part: Scored) -> SliceReport:
    both = 0 < part.labels.sum() < len(part.labels)
    return SliceReport(
        samples=len(part.labels),
        prevalence=float(part.labels.mean()),
        roc_auc=roc_auc(part.labels, part.scores) if both else None,
        accuracy=float(((part.scores > DECISION) == (part.labels == 1)).mean()),
    )


def _mass_per_score(labels: ArrayLike, scores: ArrayLike, weights: ArrayLike | None) -> tuple[Floats, Floats]:
    """Weight of positives and of negatives at each distinct score, lowest score first."""
    labels = np.asarray(labels)
    mass = np.ones(len(labels)) if weights is None else np.asarray(weights, dtype=float)
    distinct, place = np.unique(np.asarray(scores), return_inverse=True)
    positive: Floats = np.bincount(place, weights=mass * (labels == 1), minlength=len(distinct)).astype(float)
    negative: Floats = np.bincount(place, weights=mass * (labels == 0), minlength=len(distinct)).astype(float)
    return positive, negative
