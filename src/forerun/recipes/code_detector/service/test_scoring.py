import dataclasses

import numpy as np
import pytest

from forerun.recipes.code_detector.evaluation.decision import BudgetPoint, ProbabilityCalibration
from forerun.recipes.code_detector.service.detector_card import DetectorCard, Reference
from forerun.recipes.code_detector.service.known_human import KnownHuman
from forerun.recipes.code_detector.service.scoring import Answer, verdict_of


def point(budget=0.01, threshold=0.3):
    return BudgetPoint(
        budget=budget, threshold=threshold, validation_human_files=600, validation_flagged=1, validation_upper=0.008,
        tpr=0.6, tpr_low=0.5, tpr_high=0.7, fpr=0.01, fpr_low=0.004, fpr_high=0.02,
        ppv={"0.05": 0.61, "0.1": 0.77},
    )  # fmt: skip


def card(**changes) -> DetectorCard:
    """A card with round numbers."""
    return DetectorCard(
        name="fake", settings_hash="0123456789abcdef", form="raw", hold_out="", sequence_length=256,
        languages=["cpp", "java", "python"], sources=["s"], families=["qwen"], training_files=10,
        calibration=ProbabilityCalibration(slope=1, intercept=0), calibration_error_before=0.1, calibration_error=0.02,
        roc_auc=0.9, roc_auc_low=0.8, roc_auc_high=0.95, test_files=100, least_tokens=10, served_budget=0.01,
        points=[point(0.001, None), point(), point(0.05, 0.2)], by_certainty=[], by_size=[], slices=[],
        reference=Reference(
            token_edges=[50.0, 100.0], token_shares=[0.25, 0.5, 0.25], probability_edges=[0.5],
            probability_shares=[0.5, 0.5], languages={"java": 0.5, "python": 0.5},
        ),
        statement=["It proves nothing."],
    ).model_copy(update=changes)  # fmt: skip


CODE = "def add(a, b):\n    return a + b\n"


def answer(probability=0.9, tokens=100) -> Answer:
    return Answer(probability, tokens, (), np.ones(2, dtype=np.float32))


@pytest.mark.parametrize(
    ("model_answer", "language", "verdict", "words"),
    [
        (answer(), "python", "worth-a-conversation", "95 % interval 0.4% to 2.0%"),
        (answer(), "python", "worth-a-conversation", "39% of the flagged ones are not"),
        (answer(0.3), "python", "no-finding", "40% of the AI-written"),
        (answer(tokens=9), "python", "not-enough-code", "below 10"),
        (answer(), "cobol", "no-verdict", "cpp, java, python"),
    ],
)
def test_verdicts_say_their_reason(model_answer, language, verdict, words):
    actual, reason = verdict_of(model_answer, card(), language, CODE)
    assert actual == verdict
    assert words in reason


def test_the_smallest_budget_that_can_be_promised_is_served():
    assert card().served.budget == 0.01
    assert card(points=[point(0.001, None), point(0.01, None), point(0.05, 0.2)]).served.budget == 0.05
    none = card(points=[point(0.001, None)])
    assert verdict_of(answer(), none, "python", CODE)[0] == "no-verdict"


def test_what_is_no_code_gets_no_score():
    assert verdict_of(answer(), card(), "python", "x" * 2000)[0] == "not-code"


def test_a_flag_needs_the_second_opinion_where_there_is_one():
    served = point().model_copy(update={"second_threshold": 0.5})
    paired = card(points=[served], alone=[point()])
    verdict, reason = verdict_of(dataclasses.replace(answer(), second=0.5), paired, "python", CODE)
    assert verdict == "no-finding"
    assert "without its formatting, does not (0.500, threshold 0.500)" in reason
    verdict, reason = verdict_of(dataclasses.replace(answer(), second=0.51), paired, "python", CODE)
    assert verdict == "worth-a-conversation"
    assert reason.startswith("Above both thresholds")
    assert verdict_of(answer(0.3), paired, "python", CODE)[1].startswith("Below the threshold")  # it was not asked


JAVA = KnownHuman(name="contest", language="java", files=1000, flagged=33, low=0.024, high=0.046)
PYTHON = KnownHuman(name="library", language="python", files=300, flagged=1, low=0.001, high=0.019)


def test_a_flag_says_what_became_of_the_promise_on_unseen_people():
    known = card(known_human=(JAVA, PYTHON))
    java = verdict_of(answer(), known, "java", "class A { int a(int b) { return b + 1; } }")[1]
    assert "Of 1,000 files of contest, which people wrote and it has not seen, it flags 3.3%" in java
    assert "the promise did not hold there" in java
    assert "too few to tell" in verdict_of(answer(), known, "python", CODE)[1]
    assert "has not seen" not in verdict_of(answer(), card(), "python", CODE)[1]
    assert [row.promise(0.05) for row in (JAVA, PYTHON)] == ["kept", "kept"]


@pytest.mark.parametrize(
    ("content", "rows"), [(None, 0), (PYTHON.model_dump(exclude={"language"}), 1), ([JAVA, PYTHON], 2)]
)
def test_older_cards_with_one_rate_or_none_are_read(content, rows):
    document = card().model_dump() | {"known_human": content}
    assert len(DetectorCard.model_validate(document).known_human) == rows


def test_a_flag_needs_every_part_that_has_a_say():
    part = dataclasses.replace(answer(0.9), least=0.2)
    verdict, reason = verdict_of(part, card(decided_by_windows=True), "python", CODE)
    assert verdict == "no-finding"
    assert "a part of it does not (0.200)" in reason
    assert verdict_of(dataclasses.replace(part, least=0.31), card(decided_by_windows=True), "python", CODE)[0] == (
        "worth-a-conversation"
    )
    assert verdict_of(part, card(), "python", CODE)[0] == "worth-a-conversation"  # its threshold is the whole file's
