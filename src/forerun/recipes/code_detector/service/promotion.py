"""Old and new detector side by side, before the new one is served: on the shipped test rows and on stored requests.

The test rows are frozen: edge cases whose text is among them are never trained on (`recipe.edge_cases`).
"""

from collections.abc import Sequence
from typing import cast, get_args

import numpy as np

from forerun.evaluate.classification import auc_difference
from forerun.recipes.code_detector.data.corpus import embedded
from forerun.recipes.code_detector.evaluation.baselines import scored
from forerun.recipes.code_detector.service.messages import Language
from forerun.recipes.code_detector.service.scoring import DetectionQuestion, verdict_of
from forerun.recipes.code_detector.service.serving import ServedDetector
from forerun.recipes.code_detector.service.store import Prediction
from forerun.report.tables import Cell, ResultTable

FLAG = "worth-a-conversation"


def side_by_side(
    old: ServedDetector, new: ServedDetector, predictions: Sequence[Prediction]
) -> tuple[ResultTable, dict[str, float | int | bool]]:
    """AUC with the paired difference, flags of people's files and of AI's, and verdicts that would change.

    The new one is promotable when its AUC is not told to be lower and it flags no more of people's files.
    """
    samples = embedded().split("test")
    questions = [DetectionQuestion(sample.code, sample.language) for sample in samples]
    answers = [detector.answer(questions) for detector in (old, new)]
    scores = [np.asarray([answer.probability for answer in replies]) for replies in answers]
    flags = [
        np.asarray([
            verdict_of(answer, detector.card, question.language, question.code)[0] == FLAG
            for answer, question in zip(replies, questions, strict=True)
        ])
        for detector, replies in zip((old, new), answers, strict=True)
    ]  # fmt: skip
    test, human = scored(samples, scores[1]), np.asarray([not sample.is_ai for sample in samples])
    difference = auc_difference(test, scores[0])
    stored_predictions = [p for p in predictions if p.code is not None and p.language in get_args(Language)]
    old_and_new_verdicts = _verdicts_of(old, stored_predictions), _verdicts_of(new, stored_predictions)
    wrong = [
        sum(_is_wrong(p, verdict) for p, verdict in zip(stored_predictions, verdicts, strict=True))
        for verdicts in old_and_new_verdicts
    ]
    fpr, tpr = ([float(flagged[part].mean()) for flagged in flags] for part in (human, ~human))
    figures: dict[str, float | int | bool] = {
        "auc_difference": difference.value,
        "auc_difference_low": difference.low,
        "auc_difference_high": difference.high,
        "old_fpr": fpr[0],
        "new_fpr": fpr[1],
        "old_tpr": tpr[0],
        "new_tpr": tpr[1],
        "changed": int((flags[0] != flags[1]).sum()),
        "kept": len(stored_predictions),
        "kept_changed": sum(first != second for first, second in zip(*old_and_new_verdicts, strict=True)),
        "kept_checked": sum(p.outcome is not None for p in stored_predictions),
        "old_kept_wrong": wrong[0],
        "new_kept_wrong": wrong[1],
        "promotable": bool(difference.high >= 0 and fpr[1] <= fpr[0]),
    }
    return _table(figures, len(samples)), figures


def _table(figures: dict[str, float | int | bool], rows: int) -> ResultTable:
    rates: list[list[Cell]] = [
        [words, figures[f"old_{name}"], figures[f"new_{name}"], figures[f"new_{name}"] - figures[f"old_{name}"]]
        for words, name in (("people's files flagged", "fpr"), ("AI-written files flagged", "tpr"))
    ]
    names = {
        "changed": "test verdicts that change",
        "auc_difference": "AUC, new minus old",
        "auc_difference_low": "  95 % from",
        "auc_difference_high": "  to",
        "kept": "kept files",
        "kept_changed": "their verdicts that change",
        "kept_checked": "kept files that somebody checked",
    }
    rates += [[words, None, None, figures[name]] for name, words in names.items()]
    before, after = figures["old_kept_wrong"], figures["new_kept_wrong"]
    rates.append(["  wrong verdicts among them", before, after, after - before])
    word = "" if figures["promotable"] else "not "
    auc_statement = "may be as high" if figures["auc_difference_high"] >= 0 else "is lower"
    return ResultTable(
        title="Old and new side by side",
        note=f"{rows:,} frozen test rows that neither trained on; kept files may have been trained on since. The new "
        f"one is {word}promotable: its AUC {auc_statement}, and it flags {figures['new_fpr']:.2%} of people's files, "
        f"the old one {figures['old_fpr']:.2%}.",
        columns=["what", "old", "new", "difference"],
        rows=rates,
    )


def _verdicts_of(detector: ServedDetector, predictions: Sequence[Prediction]) -> list[str]:
    """The detector's verdicts on the stored code of `predictions`."""
    questions = [DetectionQuestion(p.code or "", cast(Language, p.language)) for p in predictions]
    return _verdicts(detector, questions) if questions else []


def _is_wrong(prediction: Prediction, verdict: str) -> bool:
    """A person's file that is flagged, or an AI's without a finding; what nobody checked is not wrong."""
    if prediction.outcome == "refuted":
        return verdict == FLAG
    return prediction.outcome == "confirmed" and verdict == "no-finding"


def _verdicts(detector: ServedDetector, questions: Sequence[DetectionQuestion]) -> list[str]:
    answers = detector.answer(questions)
    return [
        verdict_of(answer, detector.card, question.language, question.code)[0]
        for answer, question in zip(answers, questions, strict=True)
    ]
