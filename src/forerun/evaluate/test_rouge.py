"""ROUGE-L against the examples of its paper, and its subsequence against all subsequences."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.evaluate.rouge import common_length, rouge_l

WORDS = st.lists(st.sampled_from("abc"), max_size=7)


@pytest.mark.parametrize(
    ("answer", "score"), [("police kill the gunman", 3 / 4), ("the gunman kill police", 2 / 4)]
)  # fmt: skip
def test_the_examples_of_lin_2004_section_3_1(answer, score):
    assert rouge_l(answer, "police killed the gunman") == score


def test_case_and_signs_do_not_count_and_scripts_do():
    assert rouge_l("The cat, sat.", "the CAT sat") == 1
    assert rouge_l("кошка сидит", "кошка спит") == 0.5
    assert (rouge_l("", ""), rouge_l("", "a"), rouge_l("a", "...")) == (1, 0, 0)


@given(WORDS, WORDS)
def test_the_subsequence_is_the_longest_of_all(one, other):
    def all_of(words):
        return {part for size in range(len(words) + 1) for part in combinations(words, size)}

    assert common_length(one, other) == max(map(len, all_of(one) & all_of(other)))
