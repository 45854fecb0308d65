import pytest

from forerun.data.own.label_signs import columns_that_tell, label_signs

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
