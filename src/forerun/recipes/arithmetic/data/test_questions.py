import math
import random
from collections import Counter

import pytest

from forerun.errors import InvalidSettings
from forerun.recipes.arithmetic.data.questions import (
    ArithmeticQuestion,
    QuestionSource,
    carries,
    curriculum,
    longest_chain,
    lowest_of,
    numbers_of,
    pairs_of,
)

GOAT_STARTS = (1, 3, 6, 9, 12)


def source(operation="addition", sampler="uniform", swapped_share=0.5, seed=0):
    return QuestionSource(operation, sampler, swapped_share, random.Random(seed))


def lengths(question):
    return len(str(question.left)), len(str(question.right))


@pytest.mark.literature
def test_the_curriculum_has_the_published_cells():
    """120, 91, 55, 28 and 10 cells, 304 in all (origin 002); one in 304,000 rows a thousand times each."""
    cells = curriculum(15, GOAT_STARTS)
    parts = [[cell for cell in curriculum(15, (start,))] for start in GOAT_STARTS]
    assert [len(part) for part in parts] == [120, 91, 55, 28, 10]
    assert cells == [cell for part in parts for cell in part]
    assert 1000 * len(cells) == 304_000
    assert Counter(cells)[(1, 15)] == 1
    assert Counter(cells)[(12, 15)] == 5


@pytest.mark.parametrize("starts", [(1, 6), ()])
def test_a_part_without_cells_is_refused(starts):
    with pytest.raises(InvalidSettings, match="recipe.starts"):
        curriculum(5, starts)


@pytest.mark.parametrize("operation", ["addition", "subtraction", "multiplication", "division"])
@pytest.mark.parametrize("cell", [(1, 1), (1, 3), (2, 2), (3, 5), (15, 15)])
def test_operands_have_exactly_their_lengths(operation, cell):
    draws = source(operation)
    for _ in range(300):
        question = draws.draw(cell)
        if operation == "division":
            assert question.right * question.answer == question.left
            assert lengths(question) == (cell[1], cell[0])
        assert question.cell == cell


def test_no_number_is_ten_to_its_length():
    """The fault of randint(10**(n-1), 10**n), which has both ends: in 20,000 draws of one digit it gives ten 2,000 times."""
    counts = Counter(n for _ in range(20_000) for n in (lambda q: (q.left, q.right))(source(seed=_).draw((1, 1))))
    assert set(counts) == set(range(10))


def test_the_longer_operand_comes_first_as_often_as_asked():
    for share in (0.0, 0.5, 1.0):
        draws = source(swapped_share=share)
        first = sum(lengths(draws.draw((1, 4))) == (4, 1) for _ in range(1000)) / 1000
        assert first == pytest.approx(share, abs=0.05)


def test_carries_by_hand():
    assert carries(ArithmeticQuestion("addition", 99, 1)) == [True, True]
    assert carries(ArithmeticQuestion("addition", 19, 1)) == [True, False]
    assert carries(ArithmeticQuestion("subtraction", 100, 1)) == [True, True, False]
    assert carries(ArithmeticQuestion("subtraction", 1, 100)) == [True, True, False]
    assert carries(ArithmeticQuestion("multiplication", 99, 99)) == []
    assert (
        longest_chain(ArithmeticQuestion("addition", 9095, 816)) == 2
    )  # units and tens carry, hundreds and thousands do not
    assert longest_chain(ArithmeticQuestion("addition", 111, 111)) == 0


def test_balanced_sums_have_every_number_of_carries_alike():
    draws = source(sampler="carry-balanced")
    counts = Counter(sum(carries(draws.draw((4, 4)))) for _ in range(5000))
    assert all(counts[number] / 5000 == pytest.approx(0.2, abs=0.03) for number in range(5))
    plain = Counter(sum(carries(source(seed=n).draw((4, 4)))) for n in range(2000))
    assert plain[4] / 2000 < 0.12
    with pytest.raises(InvalidSettings, match="carry-balanced"):
        source("subtraction", "carry-balanced")


def test_log_uniform_leading_digits_follow_benford():
    draws = source(sampler="log-uniform")
    ones = sum(str(draws.draw((5, 5)).left)[0] == "1" for _ in range(4000)) / 4000
    assert ones == pytest.approx(math.log10(2), abs=0.03)


def test_held_out_pairs_never_occur_in_training_in_either_order():
    draws, excluded = source(), set()
    held_out = draws.held_out((1, 1), 60, excluded)
    assert len(held_out) == 10  # a fifth of fifty pairs
    assert len({question.key for question in held_out}) == 10
    keys = {question.key for question in held_out}
    rows = list(draws.draw_many((1, 1), 3000, keys))
    assert not keys & {question.key for question in rows}
    assert all(ArithmeticQuestion("addition", q.right, q.left).key in keys for q in held_out)
    assert ArithmeticQuestion("subtraction", 2, 1).key != ArithmeticQuestion("subtraction", 1, 2).key


@pytest.mark.parametrize("cell", [(1, 1), (1, 2), (2, 2), (2, 3), (3, 3)])
def test_divisions_without_rest_are_few_and_most_are_left_to_train_on(cell):
    """180 divisions have two digits over two; 320 were held out of them, and drawing one for training never ended."""
    shorter, longer = cell
    divisors = range(max(1, lowest_of(shorter)), 10**shorter)
    pairs = sum(n % d == 0 for d in divisors for n in range(lowest_of(longer), 10**longer))
    assert pairs_of("division", cell) == pairs
    draws, excluded = source("division"), set()
    held_out = [draws.held_out(cell, number, excluded) for number in (20, 300)]
    assert all(0 < len(each) <= 0.1 * pairs for each in held_out)
    rows = list(draws.draw_many(cell, 200, excluded))
    assert not excluded & {row.key for row in rows}


def test_divisions_of_long_numbers_are_not_all_counted():
    assert pairs_of("division", (15, 15)) >= 90_000
    assert pairs_of("addition", (15, 15)) == numbers_of(15) ** 2


def test_numbers_of_a_length():
    assert [numbers_of(n) for n in (1, 2, 3)] == [10, 90, 900]
    assert [lowest_of(n) for n in (1, 2, 3)] == [0, 10, 100]
