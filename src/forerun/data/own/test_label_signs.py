import pytest

from forerun.data.own.label_signs import LabelSign, columns_that_tell, label_signs, sign_sentences

LABELS = ["human", "robot"] * 50


def test_one_word_that_tells_the_label_is_named_with_both_shares():
    texts = [f"text {n} " + ("package" if label == "human" else "x") for n, label in enumerate(LABELS)]
    texts[0] = "text"
    signs = {sign.sign: sign for sign in label_signs(texts, LABELS)}
    assert signs["the word 'package'"].share_with_label == pytest.approx(0.98)
    assert signs["the word 'package'"].share_of_others == 0
    assert "the word 'text'" not in signs


def test_layout_that_tells_the_label_is_named():
    texts = [f"a{n}\tb" if label == "human" else f"a{n} b" for n, label in enumerate(LABELS)]
    assert label_signs(texts, LABELS)[0].sign == "a tab"


def test_many_labels_or_one_have_no_signs():
    assert label_signs(["a"] * 100, [str(n) for n in range(100)]) == []
    assert label_signs(["a", "b"], ["x", "x"]) == []


def test_columns_that_tell_the_label():
    columns = {
        "name": [f"{label} {n % 3}" for n, label in enumerate(LABELS)],
        "day": [str(n % 7) for n in range(100)],
        "row": [str(n) for n in range(100)],
    }
    assert columns_that_tell(columns, LABELS) == {"name": 1.0}


def test_words_are_said_together():
    signs = [
        LabelSign("the word 'good'", "pos", 1.0, 0.0), LabelSign("the word 'fine'", "pos", 0.9, 0.1),
        LabelSign("a tab", "pos", 0.8, 0.0), LabelSign("the word 'bad'", "neg", 0.95, 0.0),
    ]  # fmt: skip
    assert sign_sentences(signs) == [
        "the words 'good' and 'fine' are in 90.0% to 100.0% of texts labelled 'pos' and in 0.0% to 10.0% of the "
        "others; the word 'bad' is in 95.0% of texts labelled 'neg' and in 0.0% of the others",
        "a tab is in 80.0% of texts labelled 'pos' and in 0.0% of the others",
    ]
    assert sign_sentences([]) == []
