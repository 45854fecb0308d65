"""The interface between the service and a detector: questions in, answers out, in any number at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from forerun.recipes.code_detector.service.detector_card import DetectorCard
from forerun.recipes.code_detector.service.messages import Language, Verdict, Window
from forerun.recipes.code_detector.service.plausibility import plausibility
from forerun.recipes.code_detector.similarity.streams import GRAMMARS


@dataclass(frozen=True)
class DetectionQuestion:
    """One file to be judged."""

    code: str = field(repr=False)
    language: Language


@dataclass(frozen=True)
class Answer:
    """The model's scores of one file."""

    probability: float
    """Calibrated probability that the file is AI-written."""
    tokens: int
    """Tokens of the whole file, uncut."""
    windows: tuple[Window, ...]
    """Parts of a file that is longer than the model reads at once; none for a shorter one."""
    vector: NDArray[np.float32]
    """Unit vector of the embedding head."""
    least: float | None = None
    """Least probability of the file and of those of its windows that have a say; null for a file without windows."""
    second: float | None = None
    """The second opinion's probability; null where there is none, or where the detector does not flag the file."""

    def decisive(self, card: DetectorCard) -> float:
        """The probability that the verdict rests on."""
        return self.probability if self.least is None or not card.decided_by_windows else self.least


class ScoringModel(Protocol):
    """A detector that can be asked; its answers do not depend on what else is asked in the same call."""

    @property
    def card(self) -> DetectorCard:
        """The card with its thresholds and measured rates."""
        ...

    def answer(self, questions: Sequence[DetectionQuestion]) -> list[Answer]:
        """One answer a question, in order."""
        ...


def verdict_of(answer: Answer, card: DetectorCard, language: str, code: str) -> tuple[Verdict, str]:
    """The verdict and its reason, in plain words."""
    point = card.served
    if language not in card.languages:
        return "no-verdict", f"The detector was not trained on {language}; it knows {', '.join(card.languages)}."
    if answer.tokens < card.least_tokens:
        return "not-enough-code", (
            f"{answer.tokens} tokens are not enough code: below {card.least_tokens} the error rates are not known."
        )
    if language in GRAMMARS and not (shares := plausibility(code, language)).is_code:
        return "not-code", (
            f"This is not {language} code: its grammar cannot place {shares.broken:.0%} of the text, and "
            f"{shares.acting:.0%} of it does anything. The detector knows code alone."
        )
    if point.threshold is None:
        return "no-verdict", "No threshold keeps a false-positive budget with the validation files that there were."
    if answer.decisive(card) <= point.threshold < answer.probability:
        return "no-finding", (
            f"The whole file lies above the threshold, and a part of it does not ({answer.decisive(card):.3f}): a flag "
            f"needs every part that has a say. That does not show that a person wrote it."
        )
    if answer.second is not None and point.second_threshold is not None and answer.second <= point.second_threshold:
        return "no-finding", (
            f"The file lies above the threshold, and the second opinion, which reads it without its formatting, does "
            f"not ({answer.second:.3f}, threshold {point.second_threshold:.3f}): a flag needs both. That does not show "
            f"that a person wrote it."
        )
    if answer.probability <= point.threshold:
        return "no-finding", (
            f"Below the threshold. That does not show that a person wrote it: {1 - (point.tpr or 0):.0%} of the "
            f"AI-written test files lie below it too."
        )
    share = point.ppv["0.05"]
    honest = (
        "" if share is None else f" Where one file in 20 is AI-written, {1 - share:.0%} of the flagged ones are not."
    )
    return "worth-a-conversation", (
        f"{_above(card)} that flags at most {point.budget:.1%} of people's files like the validation files "
        f"(measured on test: {point.fpr or 0:.1%}, 95 % interval {point.fpr_low or 0:.1%} to "
        f"{point.fpr_high or 0:.1%}).{_unseen(card, language)}{honest}"
    )


def _above(card: DetectorCard) -> str:
    return "Above both thresholds, with and without formatting," if card.has_second_opinion else "Above the threshold"


def _unseen(card: DetectorCard, language: str) -> str:
    """What became of that promise on people's files of sources that nobody trained on, in a sentence."""
    worst = card.worst_unseen(language)
    if worst is None:
        return ""
    promise = worst.promise(card.served.budget)
    words = {
        "broken": "so the promise did not hold there",
        "kept": "so it held there",
        "open": "which is too few to tell",
    }
    return (
        f" Of {worst.files:,} files of {worst.name}, which people wrote and it has not seen, it flags "
        f"{worst.flagged / worst.files:.1%} ({worst.low:.1%} to {worst.high:.1%}), {words[promise]}."
    )
