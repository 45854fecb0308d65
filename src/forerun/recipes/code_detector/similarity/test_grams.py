import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.recipes.code_detector.similarity.grams import BASE, covered, grams, same_places

texts = st.lists(st.integers(0, 3), max_size=40).map(lambda values: np.asarray(values, dtype=np.uint64))


def polynomial(tokens):
    number = 0
    for value in tokens.tolist():
        number = (number * BASE + value) % 2**64
    return number


@given(texts, st.integers(1, 12))
def test_numbers_are_the_polynomial_of_each_run(tokens, k):
    expected = [polynomial(tokens[i : i + k]) for i in range(len(tokens) - k + 1)]
    assert grams(tokens, k).tolist() == expected


def test_a_run_has_a_token():
    with pytest.raises(ValueError, match="k = 0"):
        grams(np.zeros(3, dtype=np.uint64), 0)


@given(texts, texts)
def test_same_places_are_all_equal_pairs(first, second):
    expected = {(i, j) for i, a in enumerate(first.tolist()) for j, b in enumerate(second.tolist()) if a == b}
    places = same_places(first, second, limit=10_000)
    assert places is not None
    pairs = list(zip(*(side.tolist() for side in places), strict=True))
    assert set(pairs) == expected
    assert len(pairs) == len(expected)
    if expected:
        assert same_places(first, second, limit=len(expected) - 1) is None


def test_covered_marks_whole_runs():
    tokens = np.asarray([1, 2, 3, 4, 5, 6], dtype=np.uint64)
    run_numbers = grams(np.asarray([2, 3, 4, 5], dtype=np.uint64), 2)
    assert covered(grams(tokens, 2), run_numbers, 2, 6).tolist() == [False, True, True, True, True, False]
