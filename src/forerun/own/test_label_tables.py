"""Do a classifier's tables say its answers' own probabilities, and put the surest mistakes first?"""

import numpy as np
import pytest

from forerun.evaluate.label_metrics import Decision, LabelPredictions, plain_decision
from forerun.own.label_tables import mistake_table

NAMES, TEXTS = ["neg", "other", "pos"], ["first", "second", "third"]


def answered(targets: list[list[int]], chances: list[list[float]], *, is_multi_label: bool = False) -> LabelPredictions:
    return LabelPredictions(np.array(targets), np.array(chances), is_multi_label)


def test_a_mistake_has_its_answers_probability_and_the_surest_is_first() -> None:
    # Row 1 is truly `other`, so the surest single yes or no would be 1 - 0.187; its answer has 0.416.
    answers = answered(
        [[0, 1, 0], [0, 0, 1], [1, 0, 0]], [[0.416, 0.187, 0.397], [0.52, 0.08, 0.40], [0.80, 0.10, 0.10]]
    )
    rows = mistake_table(NAMES, TEXTS, answers, plain_decision(3)).rows
    assert rows == [
        ["second", "pos", "neg", pytest.approx(0.52)],
        ["first", "other", "neg", pytest.approx(0.416)],
    ]


def test_a_weighed_decision_keeps_the_answers_own_probability() -> None:
    answers = answered([[1, 0]], [[0.7, 0.3]])
    rows = mistake_table(["no", "yes"], ["text"], answers, Decision((0.8, 0.2))).rows
    assert rows == [["text", "no", "yes", pytest.approx(0.3)]]


def test_of_several_labels_the_surest_wrong_yes_or_no_counts() -> None:
    answers = answered([[1, 0, 1], [1, 0, 0]], [[0.1, 0.6, 0.9], [0.7, 0.95, 0.2]], is_multi_label=True)
    rows = mistake_table(NAMES, TEXTS[:2], answers, plain_decision(3)).rows
    assert rows == [
        ["second", "neg", "neg, other", pytest.approx(0.95)],
        ["first", "neg, pos", "other, pos", pytest.approx(0.9)],
    ]
