import pytest

from forerun.recipes.arithmetic.data.questions import ArithmeticQuestion
from forerun.recipes.arithmetic.evaluation.answers import (
    Proportion,
    Reply,
    exact_match,
    group_by,
    group_by_chain,
    mean_digit_match,
    trivial_answers,
    without_carrying,
)


def add(left, right, integer):
    return Reply(ArithmeticQuestion("addition", left, right), integer)


def test_exact_match_is_of_the_whole_string():
    replies = [add(40, 2, "42"), add(40, 2, "142"), add(40, 2, "042"), add(40, 2, None)]
    assert [reply.is_right for reply in replies] == [True, False, False, False]
    assert exact_match(replies).value == 0.25


def test_digits_are_matched_from_the_right():
    assert add(99, 1, "100").digit_match == 1
    assert add(99, 1, "00").digit_match == pytest.approx(2 / 3)
    assert add(99, 1, None).digit_match == 0
    assert add(120, 3, "9123").digit_match == 1  # too long, so not an exact match
    assert mean_digit_match([add(99, 1, "100"), add(99, 1, None)]) == 0.5


def test_intervals_are_exact():
    """Clopper and Pearson for 10 of 10 and 95 %: 0.025^(1/10) to 1."""
    low, high = Proportion(10, 10).interval
    assert low == pytest.approx(0.025**0.1)
    assert high == 1


def test_slices():
    replies = [add(9, 1, "10"), add(99, 1, "0"), add(1, 1, "2")]
    assert {chain: len(part) for chain, part in group_by_chain(replies).items()} == {0: 1, 1: 1, 2: 1}
    assert list(group_by(replies, lambda question: question.cell)) == [(1, 1), (1, 2)]


def test_answerers_that_cannot_add():
    assert without_carrying(ArithmeticQuestion("addition", 19, 25)) == 34
    assert without_carrying(ArithmeticQuestion("subtraction", 42, 15)) == 37
    training = [
        ArithmeticQuestion("addition", 1, 2),
        ArithmeticQuestion("addition", 2, 1),
        ArithmeticQuestion("addition", 5, 5),
    ]
    questions = [
        ArithmeticQuestion("addition", 11, 22),
        ArithmeticQuestion("addition", 0, 3),
        ArithmeticQuestion("addition", 7, 8),
    ]
    answers = trivial_answers(questions, training)
    assert {name: exact_match(replies).right for name, replies in answers.items()} == {
        "commonest answer": 1,
        "copy the larger operand": 1,
        "columns without carrying": 2,
    }
