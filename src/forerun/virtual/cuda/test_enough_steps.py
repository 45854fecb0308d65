"""When a program is stopped, and which of its steps count."""

import pytest

from forerun.virtual.cuda.enough_steps import MOST_OPERATORS, MOST_STEPS, first_warm, is_enough
from forerun.virtual.cuda.records import StepSpan
from forerun.virtual.cuda.turn_branches import TurnBranches


def steps(works: str, growth: int = 0) -> list[StepSpan]:
    """One step for each letter, whose work it stands for."""
    return [
        StepSpan(place, place + 1, (ord(work), ord(work)), place * growth, 1, 0) for place, work in enumerate(works)
    ]


@pytest.mark.parametrize(
    ("works", "result"), [("p", False), ("pa", False), ("paa", True), ("pab", False), ("pabb", True), ("paba", False)]
)
def test_two_steps_alike_behind_the_first_are_enough(works, result):
    assert is_enough(steps(works), operators=0) == result


def test_growth_is_seen_for_longer_and_nothing_for_ever():
    assert not is_enough(steps("paa", growth=1), operators=0)
    assert is_enough(steps("paaaa", growth=1), operators=0)
    assert is_enough(steps("pab"), operators=MOST_OPERATORS)
    assert is_enough(steps("abcdefghijkl"[:MOST_STEPS]), operators=0)


def test_steps_like_the_last_one_are_warm():
    assert first_warm(steps("pbaa"), TurnBranches()) == 2
    assert first_warm(steps("pabc"), TurnBranches()) == 1
