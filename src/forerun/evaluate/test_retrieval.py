import numpy as np
import pytest

from forerun.evaluate.retrieval import retrieval

GROUPS = ["a", "a", "a", "b", "b", "c"]


def test_a_perfect_similarity_is_perfect():
    same = np.asarray([[float(x == y) for y in GROUPS] for x in GROUPS])
    scores = retrieval(same, GROUPS)
    assert (scores.queries, scores.candidates) == (5, 5)
    assert (scores.map_at_r, scores.recall_at_1, scores.recall_at_10, scores.mrr) == (1.0, 1.0, 1.0, 1.0)


def test_figures_by_hand():
    """Query a0 ranks b, a, c, a: R = 2, precision at 2 is 1/2, so AP@R = 1/4; first member at rank 2."""
    groups = ["a", "b", "a", "c", "a"]
    similarity = np.zeros((5, 5))
    similarity[0] = [9, 4, 3, 2, 1]
    similarity[2] = [4, 3, 9, 2, 1]
    similarity[4] = [1, 4, 2, 3, 9]
    scores = retrieval(similarity, groups)
    # a2: a first, then b: AP@R = (1/1)/2; a4: b, c, a: 0 of the first two
    assert scores.map_at_r == pytest.approx((1 / 4 + 1 / 2 + 0) / 3)
    assert scores.recall_at_1 == pytest.approx(1 / 3)
    assert scores.mrr == pytest.approx((1 / 2 + 1 + 1 / 3) / 3)


def test_no_similarity_gets_what_chance_gets():
    """One other member among 99 candidates: recall@10 is 10/99."""
    groups = [str(n // 2) for n in range(100)]
    scores = retrieval(np.zeros((100, 100)), groups, orders=60)
    assert scores.recall_at_10 == pytest.approx(10 / 99, abs=0.02)  # 6,000 draws: four standard errors are 0.016
    assert scores.map_at_r == pytest.approx(1 / 99, abs=0.006)


def test_intervals_are_those_of_groups():
    """Half of 40 groups of two are found and half are not: a mean of 0.5 over 40 groups, so 0.5 ± 1.96 · 0.5 / √40."""
    groups = [str(n // 2) for n in range(80)]
    similarity = np.zeros((80, 80))
    for n in range(80):
        similarity[n, n ^ 1] = 1 if n < 40 else -1
    scores = retrieval(similarity, groups)
    low, high = scores.intervals["map_at_r"]
    assert scores.map_at_r == 0.5
    assert (low, high) == (pytest.approx(0.345, abs=0.03), pytest.approx(0.655, abs=0.03))
    same = retrieval(np.ones((4, 4)), ["a", "a", "a", "a"])  # too few groups: over queries, which are all alike
    assert same.intervals["mrr"] == (1, 1)


def test_only_other_kinds_are_candidates():
    """A same-language copy is not what a search across languages is asked for."""
    similarity = np.asarray([[9, 8, 1, 2], [8, 9, 2, 1], [1, 2, 9, 8], [2, 1, 8, 9.0]])
    scores = retrieval(similarity, ["a", "a", "b", "a"], kinds=["python", "python", "java", "java"])
    assert (scores.queries, scores.candidates) == (3, 2)
    assert scores.recall_at_1 == pytest.approx(2 / 3)  # the second prefers the Java file of another task


def test_bad_input_is_explained():
    with pytest.raises(ValueError, match="two members"):
        retrieval(np.zeros((2, 2)), ["a", "b"])
    with pytest.raises(ValueError, match="2 groups"):
        retrieval(np.zeros((3, 3)), ["a", "b"])
