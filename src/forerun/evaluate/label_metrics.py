"""How good are answers with one or several of C labels? Figures by exact definitions, decisions tuned elsewhere.

Targets are zeros and ones (rows, labels), probabilities have the same shape. With one label a row the decision is the
most probable one, after `Decision` has weighed the labels; with several each label has its own threshold. Both are
chosen on rows of their own (`tune_decision`), never on those reported.

- macro-F1: mean over labels of 2·hits / (predicted + true), 0 for a label that is neither. Micro-F1: the same over all
  cells; with one label a row it is the accuracy.
- MCC: Matthews' coefficient over all cells (several labels) or of the classes (Gorodkin 2004); 0 for a constant answer.
- Balanced accuracy: mean recall of the labels that occur (several labels: mean of recall and specificity, over labels).
- Average precision: Σ (recall step) · precision, macro over the labels that occur.
- ECE: gap between confidence and accuracy over 15 bins of equal mass (of every cell where there are several labels).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.evaluate.classification import average_precision, expected_calibration_error

Floats = NDArray[np.float64]
Cells = NDArray[np.int64]
DRAWS = 1000
GRID = np.linspace(0.05, 0.95, 19)
"""Thresholds that are tried."""


@dataclass(frozen=True)
class LabelPredictions:
    """Probabilities of every label for rows whose labels are known."""

    targets: Cells
    probabilities: Floats
    is_multi_label: bool

    def __post_init__(self) -> None:
        if self.targets.shape != self.probabilities.shape or not len(self.targets):
            raise ValueError(
                f"one probability for each row and label; found {self.probabilities.shape} for {self.targets.shape}"
            )
        if not np.isfinite(self.probabilities).all():
            raise ValueError("probabilities must be finite")


@dataclass(frozen=True)
class Decision:
    """How probabilities become labels: thresholds of each label, or weights where one label is chosen."""

    levels: tuple[float, ...]

    def labels(self, answers: LabelPredictions) -> Cells:
        """Zeros and ones (rows, labels)."""
        levels = np.asarray(self.levels)
        if answers.is_multi_label:
            return (answers.probabilities > levels).astype(np.int64)
        best = (answers.probabilities / levels).argmax(axis=1)
        return np.eye(answers.targets.shape[1], dtype=np.int64)[best]


def plain_decision(labels: int) -> Decision:
    """The most probable label, or every label above one half."""
    return Decision((0.5,) * labels)


def tune_decision(answers: LabelPredictions) -> Decision:
    """Thresholds with the highest F1 on rows kept for that; of two classes one threshold for the macro-F1.

    Several labels: each threshold for its label's F1. Three classes or more with one label a row: the most probable.
    """
    count = answers.targets.shape[1]
    if answers.is_multi_label:
        return Decision(tuple(_best_level(answers.targets[:, k], answers.probabilities[:, k]) for k in range(count)))
    if count != 2:
        return plain_decision(count)
    options = [Decision((1 - float(level), float(level))) for level in GRID]
    return max(options, key=lambda d: (macro_f1(answers.targets, d.labels(answers)), -abs(d.levels[1] - 0.5)))


def _best_level(targets: Cells, chances: Floats) -> float:
    """Threshold with the highest F1 of one label, the nearest to one half of several."""
    return float(max(GRID, key=lambda level: (_f1(targets, chances > level), -abs(level - 0.5))))


def figures(answers: LabelPredictions, decision: Decision) -> dict[str, float]:
    """Every figure of the module's list."""
    targets, predictions = answers.targets, decision.labels(answers)
    return {
        "macro_f1": macro_f1(targets, predictions),
        "micro_f1": _f1(targets.ravel(), predictions.ravel() == 1),
        "mcc": mcc(targets, predictions, is_multi_label=answers.is_multi_label),
        "balanced_accuracy": balanced_accuracy(targets, predictions, is_multi_label=answers.is_multi_label),
        "average_precision": mean_average_precision(answers),
        "ece": calibration_error(answers),
    }


def precision_by_label(answers: LabelPredictions) -> list[float | None]:
    """Average precision of each label; None for one that does not occur."""
    return [
        average_precision(answers.targets[:, k], answers.probabilities[:, k]) if answers.targets[:, k].any() else None
        for k in range(answers.targets.shape[1])
    ]


def mean_average_precision(answers: LabelPredictions) -> float:
    """Mean average precision over the labels that occur."""
    return float(np.mean([value for value in precision_by_label(answers) if value is not None]))


def macro_f1(targets: Cells, predictions: Cells) -> float:
    """Mean F1 over labels."""
    hits = (targets * predictions).sum(axis=0)
    both = targets.sum(axis=0) + predictions.sum(axis=0)
    return float(np.mean(np.divide(2.0 * hits, both, out=np.zeros(len(both)), where=both > 0)))


def mcc(targets: Cells, predictions: Cells, *, is_multi_label: bool) -> float:
    """Matthews' correlation coefficient."""
    if is_multi_label:
        targets, predictions = (np.stack([1 - x.ravel(), x.ravel()], axis=1) for x in (targets, predictions))
    rows = len(targets)
    hits = float((targets * predictions).sum())
    target_counts, prediction_counts = targets.sum(axis=0).astype(float), predictions.sum(axis=0).astype(float)
    under = (rows**2 - (prediction_counts**2).sum()) * (rows**2 - (target_counts**2).sum())
    return float((hits * rows - (target_counts * prediction_counts).sum()) / np.sqrt(under)) if under > 0 else 0.0


def balanced_accuracy(targets: Cells, predictions: Cells, *, is_multi_label: bool) -> float:
    """Mean recall."""
    occurs = targets.any(axis=0)
    recall = (targets * predictions).sum(axis=0)[occurs] / targets.sum(axis=0)[occurs]
    if not is_multi_label:
        return float(recall.mean())
    absent = (1 - targets).sum(axis=0)
    specificity = ((1 - targets) * (1 - predictions)).sum(axis=0)[absent > 0] / absent[absent > 0]
    return float((recall.mean() + specificity.mean()) / 2)


def calibration_error(answers: LabelPredictions) -> float:
    """Expected calibration error."""
    if answers.is_multi_label:
        return expected_calibration_error(answers.targets.ravel(), answers.probabilities.ravel())
    top = answers.probabilities.argmax(axis=1)
    right = answers.targets[np.arange(len(top)), top]
    return expected_calibration_error(right, answers.probabilities.max(axis=1))


Score = Callable[[LabelPredictions], float]


def score_of(metric: str, decision: Decision) -> Score:
    """One figure of answers."""
    return lambda answers: figures(answers, decision)[metric]


def standard_error(
    answers: LabelPredictions, metric: str, decision: Decision, draws: int = 200, seed: int = 0
) -> float:
    """Standard deviation of a figure over rows drawn with replacement."""
    return float(np.std(_resampled([answers], metric, [decision], draws, seed)[0], ddof=1))


def paired_gap(
    first: LabelPredictions,
    second: LabelPredictions,
    metric: str,
    decisions: tuple[Decision, Decision],
    *,
    draws: int = DRAWS,
) -> tuple[float, float, float]:
    """`first`'s figure minus `second`'s on the same rows, with its 95 % interval over rows drawn with replacement."""
    if not np.array_equal(first.targets, second.targets):
        raise ValueError("a paired comparison needs answers to the same rows")
    bootstrap = _resampled([first, second], metric, decisions, draws, 0)
    low, high = np.quantile(bootstrap[0] - bootstrap[1], [0.025, 0.975])
    value = figures(first, decisions[0])[metric] - figures(second, decisions[1])[metric]
    return float(value), float(low), float(high)


def _resampled(
    several: list[LabelPredictions],
    metric: str,
    decisions: tuple[Decision, ...] | list[Decision],
    draws: int,
    seed: int,
) -> list[Floats]:
    random = np.random.default_rng(seed)
    rows = len(several[0].targets)
    bootstrap = np.zeros((len(several), draws))
    for draw in range(draws):
        sample = random.integers(0, rows, rows)
        for number, (answers, decision) in enumerate(zip(several, decisions, strict=True)):
            part = LabelPredictions(answers.targets[sample], answers.probabilities[sample], answers.is_multi_label)
            bootstrap[number, draw] = one_figure(part, metric, decision)
    return list(bootstrap)


def one_figure(answers: LabelPredictions, metric: str, decision: Decision) -> float:
    """One figure, without the others."""
    if metric == "average_precision":
        return mean_average_precision(answers)
    predictions = decision.labels(answers)
    match metric:
        case "macro_f1":
            return macro_f1(answers.targets, predictions)
        case "micro_f1":
            return _f1(answers.targets.ravel(), predictions.ravel() == 1)
        case "mcc":
            return mcc(answers.targets, predictions, is_multi_label=answers.is_multi_label)
        case "balanced_accuracy":
            return balanced_accuracy(answers.targets, predictions, is_multi_label=answers.is_multi_label)
    return figures(answers, decision)[metric]


def _f1(targets: Cells, predictions: NDArray[np.bool_]) -> float:
    both = int(targets.sum()) + int(predictions.sum())
    return 2 * int((targets * predictions).sum()) / both if both else 0.0
