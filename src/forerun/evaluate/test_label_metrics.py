import numpy as np
import pytest
from sklearn import metrics as sk

from forerun.evaluate.label_metrics import (
    Decision,
    LabelPredictions,
    figures,
    paired_gap,
    plain_decision,
    precision_by_label,
    standard_error,
    tune_decision,
)


def single(rows=300, labels=3, seed=0, sharp=2.0):
    random = np.random.default_rng(seed)
    classes = random.integers(0, labels, rows)
    scores = random.normal(size=(rows, labels)) + sharp * np.eye(labels)[classes]
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    return LabelPredictions(np.eye(labels, dtype=np.int64)[classes], chances, False)


def several(rows=300, labels=4, seed=1):
    random = np.random.default_rng(seed)
    targets = (random.random((rows, labels)) < [0.1, 0.3, 0.5, 0.05]).astype(np.int64)
    chances = 1 / (1 + np.exp(-(3 * targets - 2 + random.normal(size=targets.shape))))
    return LabelPredictions(targets, chances, True)


def test_one_label_a_row_agrees_with_scikit_learn():
    answers = single()
    classes, predictions = answers.targets.argmax(axis=1), answers.probabilities.argmax(axis=1)
    scores = figures(answers, plain_decision(3))
    assert scores["macro_f1"] == pytest.approx(sk.f1_score(classes, predictions, average="macro"))
    assert scores["micro_f1"] == pytest.approx(sk.accuracy_score(classes, predictions))
    assert scores["mcc"] == pytest.approx(sk.matthews_corrcoef(classes, predictions))
    assert scores["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(classes, predictions))
    assert scores["average_precision"] == pytest.approx(
        sk.average_precision_score(answers.targets, answers.probabilities, average="macro")
    )


def test_several_labels_agree_with_scikit_learn():
    answers = several()
    predictions = (answers.probabilities > 0.5).astype(int)
    scores = figures(answers, plain_decision(4))
    assert scores["macro_f1"] == pytest.approx(
        sk.f1_score(answers.targets, predictions, average="macro", zero_division=0)
    )
    assert scores["micro_f1"] == pytest.approx(sk.f1_score(answers.targets, predictions, average="micro"))
    assert scores["mcc"] == pytest.approx(sk.matthews_corrcoef(answers.targets.ravel(), predictions.ravel()))
    by_label = sk.average_precision_score(answers.targets, answers.probabilities, average=None)
    assert precision_by_label(answers) == pytest.approx(list(by_label))


def test_the_all_negative_answer_is_no_good_by_these_figures():
    """It had 0.907 by the element-wise accuracy that a search once maximised."""
    targets = np.zeros((1000, 10), dtype=np.int64)
    targets.ravel()[np.random.default_rng(0).choice(10_000, 930, replace=False)] = 1
    scores = figures(LabelPredictions(targets, np.zeros((1000, 10)), True), plain_decision(10))
    assert (scores["macro_f1"], scores["micro_f1"], scores["mcc"], scores["balanced_accuracy"]) == (0, 0, 0, 0.5)
    assert (targets == 0).mean() == pytest.approx(0.907)


def test_thresholds_are_tuned_where_there_are_two_classes_or_several_labels():
    two = single(labels=2)
    skewed = LabelPredictions(
        two.targets, two.probabilities**3 / (two.probabilities**3).sum(axis=1, keepdims=True), False
    )
    shifted = LabelPredictions(
        two.targets, np.stack([1 - 0.3 * two.probabilities[:, 1], 0.3 * two.probabilities[:, 1]], 1), False
    )
    assert figures(shifted, tune_decision(shifted))["macro_f1"] > figures(shifted, plain_decision(2))["macro_f1"] + 0.1
    assert figures(skewed, tune_decision(skewed))["macro_f1"] >= figures(skewed, plain_decision(2))["macro_f1"]
    many = several()
    assert figures(many, tune_decision(many))["macro_f1"] > figures(many, plain_decision(4))["macro_f1"]
    assert tune_decision(single()) == plain_decision(3)


def test_a_decision_of_two_classes_is_a_threshold():
    answers = single(labels=2)
    predictions = Decision((0.3, 0.7)).labels(answers)
    assert (predictions[:, 1] == (answers.probabilities[:, 1] > 0.7)).all()


def test_gaps_and_errors_of_paired_answers():
    good, bad = single(sharp=2.0), single(sharp=0.5)
    plain = plain_decision(3)
    value, low, high = paired_gap(good, bad, "macro_f1", (plain, plain), draws=200)
    assert 0 < low < value < high
    assert paired_gap(good, good, "mcc", (plain, plain), draws=50) == (0, 0, 0)
    assert standard_error(good, "micro_f1", plain) == pytest.approx(
        np.sqrt(figures(good, plain)["micro_f1"] * (1 - figures(good, plain)["micro_f1"]) / 300), rel=0.25
    )
    with pytest.raises(ValueError, match="same rows"):
        paired_gap(good, single(seed=5), "mcc", (plain, plain))
