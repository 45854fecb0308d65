"""Tables of a classifier's answers."""

import numpy as np

from forerun.evaluate.label_metrics import Decision, LabelPredictions
from forerun.own.label_tables import mistake_table

NAMES = ("good", "bad", "other")


def mistakes(targets, probabilities, *, is_multi_label):
    answers = LabelPredictions(np.asarray(targets), np.asarray(probabilities), is_multi_label)
    levels = (0.5,) * 3 if is_multi_label else (1.0,) * 3
    rows = mistake_table(NAMES, [f"text {n}" for n in range(len(targets))], answers, Decision(levels)).rows
    return [(text, true, answer, round(float(chance), 3)) for text, true, answer, chance in rows]


def test_the_probability_of_one_label_is_that_of_the_answer():
    """It was 0.813 for an answer of 0.416: one less what the true label had."""
    targets = [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
    probabilities = [[0.397, 0.416, 0.187], [0.1, 0.3, 0.6], [0.2, 0.7, 0.1]]
    assert mistakes(targets, probabilities, is_multi_label=False) == [
        ("text 1", "good", "other", 0.6),
        ("text 0", "other", "bad", 0.416),
    ]


def test_of_several_labels_the_surest_wrong_one_counts():
    targets, probabilities = [[1, 0, 1], [0, 0, 0]], [[0.9, 0.8, 0.3], [0.1, 0.6, 0.2]]
    assert mistakes(targets, probabilities, is_multi_label=True) == [
        ("text 0", "good, other", "good, bad", 0.8),
        ("text 1", "none", "bad", 0.6),
    ]
