from collections import Counter

import numpy as np
import pytest
from pydantic import ValidationError

from forerun.errors import InvalidSettings, NotSupported
from forerun.recipes.text_classifier.augmentation.policies import (
    AugmentationOptions,
    Policy,
    make_augmenter,
    oversampled_positions,
)

TWO = AugmentationOptions(
    policies=[Policy(method="aeda", probability=0.3), Policy(method="mixup", strength=0.4, probability=0.5)]
)


def test_each_sample_gets_one_policy_or_none_in_the_stated_shares():
    augmenter = make_augmenter(TWO, 0)
    counts = Counter(p.method if (p := augmenter.policy(0, n)) else None for n in range(4000))
    assert counts["aeda"] / 4000 == pytest.approx(0.3, abs=0.03)
    assert counts["mixup"] / 4000 == pytest.approx(0.5, abs=0.03)


def test_the_same_whoever_asks_and_in_any_order():
    one, other = make_augmenter(TWO, 7), make_augmenter(TWO, 7)
    forward = [one.text("a short text about a film", 2, n) for n in range(50)]
    backward = [other.text("a short text about a film", 2, n) for n in reversed(range(50))]
    assert forward == backward[::-1]
    assert forward != [make_augmenter(TWO, 8).text("a short text about a film", 2, n) for n in range(50)]
    assert forward != [one.text("a short text about a film", 3, n) for n in range(50)]


def test_more_than_one_a_sample_is_refused():
    with pytest.raises(ValidationError, match="at most one"):
        AugmentationOptions(policies=[Policy(method="aeda", probability=0.7), Policy(method="swap", probability=0.4)])


def test_a_method_twice_is_refused():
    with pytest.raises(ValidationError, match="once"):
        AugmentationOptions(policies=[Policy(method="aeda", probability=0.1)] * 2)


@pytest.mark.parametrize(
    ("method", "error", "words"),
    [
        ("back-translation", NotSupported, "unavailable"),
        ("eda", InvalidSettings, "lexicon"),
        ("synonym", InvalidSettings, "lexicon"),
        ("contextual", InvalidSettings, "masked_lm"),
    ],
)
def test_what_is_not_there_is_an_error_and_never_a_silent_no_op(method, error, words):
    with pytest.raises(error, match=words):
        make_augmenter(AugmentationOptions(policies=[Policy(method=method)]), 0)


def test_a_translator_makes_back_translation_available():
    options = AugmentationOptions(policies=[Policy(method="back-translation", probability=1.0)])
    augmenter = make_augmenter(options, 0, rewrites={"back-translation": lambda text, strength, random: text[::-1]})
    assert augmenter.text("abc", 0, 0) == "cba"
    assert augmenter.cost["back-translation"].samples == 1


def test_a_text_that_changes_its_label_is_given_back():
    options = AugmentationOptions(policies=[Policy(method="deletion", strength=0.9, probability=1.0)], keep_label=True)
    augmenter = make_augmenter(options, 0, teacher=lambda texts: np.asarray(["film" in text for text in texts]))
    new_texts = [augmenter.text("a good film indeed", 0, n) for n in range(40)]
    assert all("film" in text for text in new_texts)
    assert 0 < augmenter.cost["deletion"].undone < 40


def test_protected_words_reach_the_edits():
    options = AugmentationOptions(
        policies=[Policy(method="deletion", strength=0.9, probability=1.0)], protected=["Film"]
    )
    augmenter = make_augmenter(options, 0, strongest=["good"])
    assert all({"good", "film", "not"} <= set(augmenter.text("not a good film", 0, n).split()) for n in range(20))


def test_oversampling_repeats_rare_labels_until_their_share():
    labels = [(0,)] * 30 + [(1,)] * 5 + [(0, 1)]
    assert oversampled_positions(labels, 0.0) == list(range(36))
    positions = oversampled_positions(labels, 0.5)
    counts = Counter(label for n in positions for label in labels[n])
    assert positions[:36] == list(range(36))
    assert counts[1] >= 0.5 * 31
