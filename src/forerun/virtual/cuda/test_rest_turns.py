"""Loops of a sampler or an evaluation: which are handed their turns, and what the share of those that ran is."""

import ast

import pytest

from forerun.virtual.cuda.rest_turns import TURNS, RestTurns, mark_turns


@pytest.mark.parametrize(
    ("loop", "marked"),
    [
        ("for i in range(9): look(i)", f"for i in {TURNS}(range(9)):"),
        (
            "for i in tqdm(reversed(range(9)), total=9): look(i)",
            f"for i in tqdm({TURNS}(reversed(range(9))), total=9):",
        ),
        ("for k, i in enumerate(trange(9)): look(i)", f"for k, i in enumerate({TURNS}(trange(9))):"),
        ("for i in range(9): train(i)", None),
        ("for layer in layers: look(layer)", None),
        ("for batch in DataLoader(rows): look(batch)", None),
    ],
)
def test_loops_over_numbers_that_do_not_train_are_handed_their_turns(loop, marked):
    tree = ast.parse(loop)
    assert mark_turns(tree, lambda node: "train" in ast.unparse(node)) is (marked is not None)
    if marked is not None:
        assert marked in ast.unparse(tree)


class Clock:
    """Of turns that take a second each, or less; six may pass."""

    def __init__(self):
        self.seconds, self.events, self.cuts = 0.0, 0, []
        self.turns = RestTurns(lambda: self.seconds > 6, self.cut)

    def cut(self, begin, end, share):
        self.seconds = 0.0
        self.cuts.append((begin, end, share))

    def over(self, values):
        return self.turns.over(values, lambda: self.events)

    def work(self, seconds=1.0):
        self.seconds += seconds
        self.events += 1


def test_a_loop_that_takes_long_counts_by_the_turns_that_ran():
    clock, ran = Clock(), []
    for turn in clock.over(reversed(range(100))):
        ran.append(turn)
        clock.work()
    assert ran == list(range(99, 92, -1))
    assert clock.cuts == [(0, 7, 0.07)]
    assert not clock.turns.are_running


@pytest.mark.parametrize(
    ("inner", "outer", "seconds", "cuts"),
    [
        (100, 10, 1.0, [(0, 7, 0.07), (0, 7, 0.1)]),  # 7 of 100 turns in the first of 10
        (3, 10, 1.0, [(0, 9, 0.3)]),  # the third of 10 is the last
        (3, 10, 0.01, []),
    ],
)
def test_of_loops_in_one_another_the_inner_is_ended_in_the_first_turn_only(inner, outer, seconds, cuts):
    clock = Clock()
    for _ in clock.over(range(outer)):
        for _ in clock.over(range(inner)):
            clock.work(seconds)
    assert clock.cuts == cuts


def test_a_loop_that_is_left_leaves_nothing_behind():
    clock = Clock()
    for turn in clock.over(range(100)):
        if turn == 3:
            break
    assert not clock.turns.are_running
    assert list(clock.over(iter([]))) == []
    endless = iter(int, 1)
    assert clock.over(endless) is endless
