"""From scores to a decision that may accuse somebody: thresholds by false-positive budget, and when to say nothing.

- *Threshold by budget*: the lowest one whose false-positive rate is, with 95 % confidence, within the budget: the upper
  end of the one-sided Clopper-Pearson interval on the validation rows must not exceed it (Clopper and Pearson,
  Biometrika 1934). With few human rows small budgets cannot be promised at all: none of n false still allows 3/n.
- *Second opinion*: it takes flags away and never adds one. Its threshold has the rank that is certified for files above
  both, where a file's score is the lesser of its ranks among the validation files; the first reader's threshold is the
  higher one of that rank's and its own. With equal ranks alone, people's files of a source on which the first reader
  had kept its promise were flagged (2026-11-25: 19 of 342 library modules, where it alone flags none).
- *Calibration*: a logistic curve over the score's log-odds, fitted on validation (Platt 1999).
- *PPV*: of what is flagged, the share that is right, at a stated prevalence; it falls with rare misconduct.
- *Coverage and risk*: how often the rest is wrong when the least certain, or the smallest, files are left alone
  (El-Yaniv and Wiener, JMLR 2010).

All rates are measured on rows that chose nothing.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.evaluate.classification import DECISION, Floats, Scored, clopper_pearson
from forerun.records import Record

BUDGETS = (0.001, 0.01, 0.05)
"""Shares of innocent files that may be flagged."""
PREVALENCES = (0.01, 0.05, 0.10, 0.25, 0.50)
CONFIDENCE = 0.95
COVERAGES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
EDGE = 1e-6
"""Probabilities are kept this far from 0 and 1 before their log-odds are taken."""


class ProbabilityCalibration(Record):
    """probability = 1 / (1 + exp(-(slope · log-odds of the score + intercept)))"""

    slope: float
    intercept: float

    def __call__(self, scores: Floats) -> Floats:
        """Calibrated probabilities of scores in [0, 1]."""
        return 1 / (1 + np.exp(-(self.slope * log_odds(scores) + self.intercept)))


class BudgetPoint(Record):
    """One threshold and its rates on test, with exact 95 % intervals; nulls where the budget cannot be promised."""

    budget: float
    threshold: float | None
    validation_human_files: int
    validation_flagged: int
    validation_upper: float | None
    """Upper end of the one-sided interval, at most the budget."""
    tpr: float | None
    tpr_low: float | None
    tpr_high: float | None
    fpr: float | None
    fpr_low: float | None
    fpr_high: float | None
    ppv: dict[str, float | None]
    """Share of flagged files that are AI-written, by prevalence (as text); null where nothing would be flagged."""
    second_threshold: float | None = None
    """What the second opinion must lie above too; null where there is none."""


class CoveragePoint(Record):
    """Coverage and error when files below a limit are left alone."""

    limit: float
    coverage: float
    error: float
    """Share of the judged files that are judged wrongly at probability ½."""
    files: int


def log_odds(scores: Floats) -> Floats:
    """log(p / (1 - p))."""
    inside = np.clip(np.asarray(scores, dtype=float), EDGE, 1 - EDGE)
    return np.log(inside) - np.log1p(-inside)


def fit_calibration(validation: Scored) -> ProbabilityCalibration:
    """Slope and intercept by maximum likelihood on `validation`, practically unpenalised."""
    from sklearn.linear_model import LogisticRegression

    # scikit-learn always penalises by default; C is the inverse of the penalty's weight.
    model = LogisticRegression(C=1e6).fit(log_odds(validation.scores)[:, None], validation.labels)
    return ProbabilityCalibration(slope=float(model.coef_[0, 0]), intercept=float(model.intercept_[0]))


def upper_bound(hits: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """One-sided Clopper-Pearson bound that a rate stays under with `confidence`."""
    return clopper_pearson(hits, trials, confidence=1 - 2 * (1 - confidence))[1]


def files_needed(budget: float, confidence: float = CONFIDENCE) -> int:
    """Human files, none of them flagged, that promise `budget`: (1 - budget)^n <= 1 - confidence."""
    return math.ceil(math.log(1 - confidence) / math.log(1 - budget))


def certified_threshold(validation: Scored, budget: float) -> tuple[float, int] | None:
    """The lowest threshold that promises `budget` and the validation negatives above it; None where none can."""
    negatives = np.sort(validation.scores[validation.labels == 0])[::-1]
    allowed = -1  # the bound rises with the number of hits, so the first one over budget ends the search
    while allowed + 1 < len(negatives) and upper_bound(allowed + 1, len(negatives)) <= budget:
        allowed += 1
    if allowed < 0:
        return None
    threshold = float(negatives[allowed])
    return threshold, int((negatives > threshold).sum())


def certified_pair(validation: Scored, second: Floats, budget: float) -> tuple[float, float, int] | None:
    """Thresholds of two readers that promise `budget` for files above both, and the negatives above both.

    `second` has the other reader's scores of the same files. What both flag, the first alone would flag too. None where
    no threshold promises it.
    """
    alone = certified_threshold(validation, budget)
    ranks = np.minimum(_ranks(validation.scores), _ranks(second)).astype(float)
    certificate = certified_threshold(Scored(validation.labels, ranks, validation.groups), budget)
    if alone is None or certificate is None:
        return None
    # A rank above `place` is a score above the value at that place: ranks count what lies strictly below.
    place = int(certificate[0])
    first_threshold = max(alone[0], float(np.sort(validation.scores)[place]))
    second_threshold = float(np.sort(second)[place])
    above = (validation.scores > first_threshold) & (second > second_threshold)
    return first_threshold, second_threshold, int((above & (validation.labels == 0)).sum())


def _ranks(scores: Floats) -> NDArray[np.int64]:
    """How many of the scores lie below each."""
    return np.searchsorted(np.sort(scores), scores, side="left")


def ppv(tpr: float, fpr: float, prevalence: float) -> float | None:
    """Share of the flagged that are positive; None where nothing is flagged."""
    right, wrong = tpr * prevalence, fpr * (1 - prevalence)
    return right / (right + wrong) if right + wrong else None


def budget_point(
    validation: Scored, test: Scored, budget: float, second: tuple[Floats, Floats] | None = None
) -> BudgetPoint:
    """The threshold of a budget and its rates on `test`; PPV takes the upper end of the false-positive rate.

    `second` has the second opinion's scores of the same validation and test files: only what lies above both thresholds
    is flagged.
    """
    humans = int((validation.labels == 0).sum())
    certificate = (
        certified_threshold(validation, budget) if second is None else certified_pair(validation, second[0], budget)
    )
    if certificate is None:
        nothing = dict.fromkeys(("tpr", "tpr_low", "tpr_high", "fpr", "fpr_low", "fpr_high"))
        return BudgetPoint(
            budget=budget, threshold=None, validation_human_files=humans, validation_flagged=0, validation_upper=None,
            ppv={f"{p:g}": None for p in PREVALENCES}, **nothing,
        )  # fmt: skip
    threshold, *second_threshold, flagged_negatives = certificate
    flagged, positive = test.scores > threshold, test.labels == 1
    if second is not None:
        flagged &= second[1] > second_threshold[0]
    hits, false = int((flagged & positive).sum()), int((flagged & ~positive).sum())
    tpr_low, tpr_high = clopper_pearson(hits, int(positive.sum()))
    fpr_low, fpr_high = clopper_pearson(false, int((~positive).sum()))
    tpr = hits / int(positive.sum())
    return BudgetPoint(
        budget=budget,
        threshold=threshold,
        validation_human_files=humans,
        validation_flagged=flagged_negatives,
        validation_upper=upper_bound(flagged_negatives, humans),
        tpr=tpr,
        tpr_low=tpr_low,
        tpr_high=tpr_high,
        fpr=false / int((~positive).sum()),
        fpr_low=fpr_low,
        fpr_high=fpr_high,
        ppv={f"{p:g}": ppv(tpr, fpr_high, p) for p in PREVALENCES},
        second_threshold=second_threshold[0] if second_threshold else None,
    )


def by_certainty(test: Scored) -> list[CoveragePoint]:
    """Error when only the most certain share of the files is judged; the limit is the least |p - ½| that is."""
    certainty = np.abs(test.scores - DECISION)
    order = np.argsort(-certainty, kind="stable")
    wrong = ((test.scores > DECISION) != (test.labels == 1))[order]
    points = []
    for coverage in COVERAGES:
        count = max(1, round(coverage * len(order)))
        points.append(
            CoveragePoint(
                limit=float(certainty[order[count - 1]]), coverage=count / len(order),
                error=float(wrong[:count].mean()), files=count,
            )
        )  # fmt: skip
    return points


def by_size(test: Scored, sizes: Sequence[int] | NDArray[np.int64], limits: Sequence[int]) -> list[CoveragePoint]:
    """Error when files of fewer than each limit of tokens are left alone; limits that leave none are left out."""
    tokens, wrong = np.asarray(sizes), (test.scores > DECISION) != (test.labels == 1)
    return [
        CoveragePoint(
            limit=float(limit), coverage=float((tokens >= limit).mean()), error=float(wrong[tokens >= limit].mean()),
            files=int((tokens >= limit).sum()),
        )
        for limit in limits
        if (tokens >= limit).any()
    ]  # fmt: skip
