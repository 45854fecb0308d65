"""The card of an exported detector as data: its measured rates, and what every answer must say beside the score."""

import json
from pathlib import Path
from typing import Any

from pydantic import field_validator

from forerun.errors import BadData
from forerun.recipes.code_detector.evaluation.decision import BudgetPoint, CoveragePoint, ProbabilityCalibration
from forerun.recipes.code_detector.service.known_human import KnownHuman
from forerun.records import Record

CARD = "detector.json"
NO_SECOND_OPINION = (
    "This export flags without a second opinion that cannot see formatting, so it flags more of the people whom it has "
    "not seen. Export the run again to have one: forerun export RUN --to NEW."
)


class SliceRow(Record):
    """The detector on one part of the test rows, AI-written files of a generator beside all human ones."""

    name: str
    files: int
    ai_files: int
    roc_auc: float | None
    tpr: float | None
    fpr: float | None
    """Rates at the served budget; nulls where there are no such files."""


class Distribution(Record):
    """Shares of bins and their inner edges."""

    edges: list[float]
    shares: list[float]


class Reference(Record):
    """Distribution of the validation files, to see when others come: shares of bins and their inner edges."""

    token_edges: list[float]
    token_shares: list[float]
    probability_edges: list[float]
    probability_shares: list[float]
    languages: dict[str, float]
    features: dict[str, Distribution] = {}
    """Counts of the formatting, by their names; none in cards of older exports."""


class DetectorCard(Record):
    """Everything that an answer needs beside the score."""

    format: str = "forerun.detector/1"
    name: str
    settings_hash: str
    form: str
    hold_out: str
    sequence_length: int
    languages: list[str]
    sources: list[str]
    families: list[str]
    training_files: int
    calibration: ProbabilityCalibration
    calibration_error_before: float
    calibration_error: float
    """Expected calibration error on test, raw and calibrated."""
    roc_auc: float
    roc_auc_low: float
    roc_auc_high: float
    test_files: int
    least_tokens: int
    served_budget: float
    points: list[BudgetPoint]
    by_certainty: list[CoveragePoint]
    by_size: list[CoveragePoint]
    slices: list[SliceRow]
    reference: Reference
    statement: list[str]
    alone: list[BudgetPoint] = []
    """Points of the detector without its second opinion, to see what that costs; none where it has none."""
    decided_by_windows: bool = False
    """Whether thresholds and rates are of the least score of a file and its windows; false in older cards."""
    known_human: tuple[KnownHuman, ...] = ()
    """People's files of unseen sources, measured after the export by `benchmarks/detector_errors.py`."""

    @field_validator("known_human", mode="before")
    @classmethod
    def _as_rows(cls, value: Any) -> Any:
        """Older cards have one row, or null."""
        return () if value is None else (value,) if isinstance(value, dict | KnownHuman) else value

    def worst_unseen(self, language: str) -> KnownHuman | None:
        """The unseen source of a language of which most is flagged; None where none was measured."""
        rows = [row for row in self.known_human if row.language in (None, language)]
        return max(rows, key=lambda row: row.flagged / row.files, default=None)

    @property
    def full_statement(self) -> list[str]:
        """What every answer says, and that there is no second opinion where there is none."""
        missing = self.form == "raw" and not self.has_second_opinion
        return [*self.statement, *([NO_SECOND_OPINION] if missing else [])]

    @property
    def has_second_opinion(self) -> bool:
        """Whether a flag needs a second reader to agree; older exports have none."""
        return bool(self.alone)

    @property
    def served(self) -> BudgetPoint:
        """The point whose threshold is served: that of `served_budget`, or the smallest that can be promised."""
        usable_points = [point for point in self.points if point.threshold is not None]
        return next((point for point in usable_points if point.budget >= self.served_budget), self.points[-1])


def read_card(folder: Path) -> DetectorCard:
    """The card of an exported detector.

    Raises:
        BadData: there is none, or it breaks the format.
    """
    try:
        return DetectorCard.model_validate(json.loads((folder / CARD).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise BadData(f"{folder / CARD}: no card of a detector: {error}. Export the run again.") from error
