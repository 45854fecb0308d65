import numpy as np
import pytest

from forerun.evaluate.text_baselines import answers_of, fit_baselines, fit_words

TEXTS = [f"{'good fine' if n % 3 else 'bad awful'} film {n % 7}" + (" long" * (n % 3 == 0) * 8) for n in range(90)]
LABELS = np.asarray([[1 - int(n % 3 > 0), int(n % 3 > 0)] for n in range(90)])


def accuracy(probabilities, targets):
    return float((probabilities.argmax(axis=1) == targets.argmax(axis=1)).mean())


def test_one_label_a_row():
    answers = {b.name: b.answer(TEXTS) for b in fit_baselines(TEXTS, LABELS, is_multi_label=False)}
    assert list(answers) == ["majority", "prior", "all-negative", "length", "tf-idf"]
    assert all(chances.shape == LABELS.shape for chances in answers.values())
    assert accuracy(answers["majority"], LABELS) == pytest.approx(2 / 3)
    assert accuracy(answers["all-negative"], LABELS) == pytest.approx(1 / 3)
    assert accuracy(answers["length"], LABELS) == accuracy(answers["tf-idf"], LABELS) == 1


def test_several_labels_one_of_which_never_occurs():
    targets = np.concatenate([LABELS, np.zeros((90, 1), dtype=int)], axis=1)
    for baseline in fit_baselines(TEXTS, targets, is_multi_label=True):
        answers = answers_of(baseline, TEXTS, targets, is_multi_label=True)
        assert (answers.probabilities[:, 2] == 0).all()


def test_rows_of_one_class_make_every_baseline_constant():
    one = np.asarray([[0, 1]] * 90)
    for baseline in fit_baselines(TEXTS, one, is_multi_label=False):
        if baseline.name != "all-negative":
            assert (baseline.answer(TEXTS) == one).all(), baseline.name


def test_the_strongest_words_are_those_that_tell():
    assert set(fit_words(TEXTS, LABELS, is_multi_label=False).strongest(5)) >= {"good", "fine", "awful"}
