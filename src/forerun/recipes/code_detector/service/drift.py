"""Is what comes in still what the detector was judged on? Drift, feedback, and cases worth learning from.

Drift is the population stability index, Σ (p - q) · ln(p / q) over the bins of the card's reference, with half a file
added to each bin; with few files chance alone makes it large, so it stands beside what 95 % of samples of as many
validation files would stay under; the eleven counts of the formatting share one such chance. Feedback gives the share
of flags that were right, and of checked verdicts that were wrong by release, with exact intervals.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from forerun.errors import InvalidSettings
from forerun.evaluate.classification import clopper_pearson
from forerun.recipes.code_detector.evaluation.baselines import FORMATTING_COUNTS
from forerun.recipes.code_detector.service.detector_card import DetectorCard
from forerun.recipes.code_detector.service.store import Prediction
from forerun.records import Record

FLAGGED, CALM = "worth-a-conversation", "no-finding"
NEAR = 0.15
"""Distance from the threshold, in probability, of a case that is worth a look."""
DRAWS, CERTAINTY = 2000, 0.95
Count = Callable[[Sequence[Prediction]], np.ndarray]


class Drift(Record):
    """One quantity of what came in, beside the validation files."""

    quantity: str
    index: float
    """Population stability index."""
    chance: float
    """Index that 95 % of samples of as many validation files stay under."""
    drifted: bool


class Release(Record):
    """One model that answered, and how often it was wrong among the verdicts that somebody checked."""

    model: str
    """Hash of the settings of its run."""
    predictions: int
    checked: int
    wrong_flags: int
    missed: int
    """AI-written files without a finding."""
    error: float | None
    error_low: float | None
    error_high: float | None
    """Share of checked verdicts that were wrong, with its exact 95 % interval."""


class DriftReport(Record):
    """Verdicts, drift and feedback of what a service has answered."""

    predictions: int
    verdicts: dict[str, int]
    drift: list[Drift]
    feedback: int
    flags_with_feedback: int
    flags_confirmed: int
    precision: float | None
    precision_low: float | None
    precision_high: float | None
    near_threshold: int
    releases: list[Release]


def stability_index(shares: np.ndarray, counts: np.ndarray) -> float:
    """Population stability index of `counts` against expected `shares`, half a file added to each bin of both."""
    number = counts.sum()
    expected = (shares * number + 0.5) / (number + len(shares) / 2)
    observed = (counts + 0.5) / (number + len(counts) / 2)
    return float(((observed - expected) * np.log(observed / expected)).sum())


def drift_of(quantity: str, shares: Sequence[float], counts: np.ndarray, certainty: float = CERTAINTY) -> Drift:
    """The index beside what `certainty` of chance draws stay under."""
    expected = np.asarray(shares) / np.sum(shares)
    draws = np.random.default_rng(0).multinomial(int(counts.sum()), expected, DRAWS)
    chance = float(np.quantile([stability_index(expected, draw) for draw in draws], certainty))
    index = stability_index(expected, counts)
    return Drift(quantity=quantity, index=index, chance=chance, drifted=index > chance)


def drift_report(predictions: Sequence[Prediction], card: DetectorCard) -> DriftReport:
    """Everything about these predictions."""
    reference = card.reference
    drifts: list[Drift] = []
    if predictions:
        languages = [*reference.languages, "another"]
        names = [p.language if p.language in reference.languages else "another" for p in predictions]
        tokens = np.minimum([p.tokens for p in predictions], card.sequence_length)  # as the reference is cut
        drifts = [
            drift_of("tokens", reference.token_shares, _binned(tokens, reference.token_edges)),
            drift_of("probability", reference.probability_shares,
                     _binned([p.probability for p in predictions], reference.probability_edges)),
            drift_of("language", [*reference.languages.values(), 0.0], np.asarray([names.count(n) for n in languages])),
        ]  # fmt: skip
        drifts += _feature_drift(predictions, card)
    with_feedback = [p for p in predictions if p.outcome is not None]
    flags = [p for p in with_feedback if p.verdict == FLAGGED]
    confirmed = sum(p.outcome == "confirmed" for p in flags)
    low, high = clopper_pearson(confirmed, len(flags)) if flags else (None, None)
    return DriftReport(
        predictions=len(predictions),
        verdicts={v: sum(p.verdict == v for p in predictions) for v in sorted({p.verdict for p in predictions})},
        drift=drifts,
        feedback=len(with_feedback),
        flags_with_feedback=len(flags),
        flags_confirmed=confirmed,
        precision=confirmed / len(flags) if flags else None,
        precision_low=low,
        precision_high=high,
        near_threshold=sum(_is_near(p, card) for p in predictions),
        releases=releases(predictions),
    )


def _feature_drift(predictions: Sequence[Prediction], card: DetectorCard) -> list[Drift]:
    """Drift of the counts of the formatting, which together raise a false alarm in 5 % of cases."""
    rows = [prediction.features for prediction in predictions if prediction.features is not None]
    expected = card.reference.features
    if not rows or not expected:
        return []
    certainty = 1 - (1 - CERTAINTY) / len(expected)  # Bonferroni
    columns: dict[str, np.ndarray] = dict(zip(FORMATTING_COUNTS, np.asarray(rows).T, strict=True))
    return [
        drift_of(name, distribution.shares, _binned(columns[name], distribution.edges), certainty)
        for name, distribution in expected.items()
    ]


def releases(predictions: Sequence[Prediction]) -> list[Release]:
    """Each model's error among the verdicts that were checked, in the order of their first answers."""
    by_model: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        by_model.setdefault(prediction.model, []).append(prediction)
    return [_release(model, rows) for model, rows in by_model.items()]


def _release(model: str, rows: Sequence[Prediction]) -> Release:
    checked = [p for p in rows if p.outcome is not None and p.verdict in (FLAGGED, CALM)]
    wrong = [p for p in checked if _is_wrong(p)]
    low, high = clopper_pearson(len(wrong), len(checked)) if checked else (None, None)
    return Release(
        model=model,
        predictions=len(rows),
        checked=len(checked),
        wrong_flags=sum(p.verdict == FLAGGED for p in wrong),
        missed=sum(p.verdict == CALM for p in wrong),
        error=len(wrong) / len(checked) if checked else None,
        error_low=low,
        error_high=high,
    )


def _binned(values: Sequence[float] | np.ndarray, edges: Sequence[float]) -> np.ndarray:
    return np.bincount(np.searchsorted(edges, values, "right"), minlength=len(edges) + 1)


def _is_near(prediction: Prediction, card: DetectorCard) -> bool:
    threshold = card.served.threshold
    return threshold is not None and abs(prediction.probability - threshold) < NEAR


def write_edge_cases(predictions: Sequence[Prediction], card: DetectorCard, to: Path) -> int:
    """Write wrong verdicts and files near the threshold whose outcome is known, as rows that training reads.

    A row has the fields of `data.corpus`; each text once, in a group of its own. Returns how many there are.

    Raises:
        InvalidSettings: `to` exists, or codes were not kept.
    """
    if to.exists():
        raise InvalidSettings(f"--edge-cases: {to} exists, and would be overwritten. Name another file.")
    cases = {p.code_sha256: p for p in predictions if p.outcome is not None and (_is_wrong(p) or _is_near(p, card))}
    if cases and all(p.code is None for p in cases.values()):
        raise InvalidSettings(
            "--edge-cases: there are cases, but their code was not kept. Serve with --keep-code, if the people whose "
            "code it is agree."
        )
    rows = [
        {"id": p.id, "code": p.code, "language": p.language, "label": "ai" if p.outcome == "confirmed" else "human",
         "group": f"served/{p.code_sha256[:16]}", "source": "served", "generator": "unknown"}
        for p in cases.values()
        if p.code
    ]  # fmt: skip
    to.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return len(rows)


def _is_wrong(prediction: Prediction) -> bool:
    """A flag that was refuted, or a file without finding that was AI-written after all."""
    return (prediction.verdict == FLAGGED) == (prediction.outcome == "refuted")
