"""Branches that are taken in some turns only: which are marked, when they are taken, how often the run has them."""

import ast

import pytest

from forerun.virtual.cuda.later_loops import LOOPS, functions_that_train
from forerun.virtual.cuda.turn_branches import (
    CYCLE,
    IS_OVER,
    RARELY,
    REMAINDER,
    TAKES,
    BranchMoment,
    BranchRun,
    TurnBranches,
    mark_branches,
)

RUN = BranchRun("train.py:2", "train.py:1", 0, 10, 0)


@pytest.mark.parametrize(
    ("body", "is_marked"),
    [
        ("if step % 10 == 0:\n        evaluate()", True),
        ("if main and not (step + 1) % args.every:\n        evaluate()", True),
        ("if step > 10:\n        evaluate()", True),
        ("if step > 10:\n        evaluate()\n    else:\n        warm_up()", False),
        ("if step > 10:\n        widen(1)", False),
        ("if loss > 10:\n        evaluate()", False),
        ("if step % 4 == 0:\n        optimizer.step()", False),
        ("if step % 10 == 0:\n        evaluate()\n        break", False),
        ("if step % 10 == 0:\n        evaluate()\n        if waits > 3: break", True),
        ("if step % 10 == 0:\n        for batch in loader:\n            evaluate(batch)\n            break", True),
        ("if step % 10 == 0:\n        flag = True", False),
    ],
)
def test_branches_by_a_remainder_that_neither_train_nor_leave_are_marked(body, is_marked):
    tree = ast.parse(f"for step in range(100):\n    loss.backward()\n    {body}\n")
    mark_branches(tree, "train.py", functions_that_train(tree), lambda node: isinstance(node, LOOPS))
    assert (TAKES in ast.unparse(tree)) is is_marked


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("optimizer.step()", {CYCLE, RARELY}),
        ("loss.backward()\n        optimizer.step()", {CYCLE, RARELY}),
        ("loss.backward()\n        break", {CYCLE}),
        ("optimizer.step()\n        break", set()),
        ("scheduler.step()", set()),
        ("rate = 1", set()),
    ],
)
def test_branches_that_train_or_update_are_marked_as_such(body, names):
    tree = ast.parse(f"for step in range(100):\n    loss.backward()\n    if step % 4 == 0:\n        {body}\n")
    is_marked = mark_branches(tree, "train.py", functions_that_train(tree), lambda node: isinstance(node, LOOPS))
    assert is_marked is bool(names)
    assert {name for name in (CYCLE, RARELY, TAKES) if name in ast.unparse(tree)} == names


def test_a_marked_branch_does_what_it_did():
    source = "for step in range(7):\n    backward()\n    if step % 3 == 1:\n        seen.append(step)\n    else:\n        other.append(step)\n"
    tree = ast.parse(source)
    mark_branches(tree, "train.py", {"backward"}, lambda node: isinstance(node, LOOPS))
    branches = TurnBranches()
    now = BranchMoment(0, 0, 0)
    names = {
        "seen": [],
        "other": [],
        "backward": lambda: None,
        REMAINDER: lambda counter, period, residue, line, of_loop: branches.remainder(
            line, counter, period, 0, residue
        ),
        TAKES: lambda is_due, line, loop, *beside: branches.takes(is_due, line, loop, now, *beside, is_extra=False),
        IS_OVER: lambda line: branches.is_over(line, now),
    }
    exec(compile(ast.fix_missing_locations(tree), "train.py", "exec"), names)
    assert (names["seen"], names["other"]) == ([1, 4], [0, 2, 3, 5, 6])
    assert [(run.line, run.loop) for run in branches.runs] == [("train.py:3", "train.py:1")] * 2


def test_a_branch_that_is_not_due_is_taken_once_in_an_extra_turn():
    branches = TurnBranches()
    now = BranchMoment(5, 1, 0)
    assert not branches.takes(False, RUN.line, RUN.loop, now, is_extra=True)  # how often it is due is not known
    branches.remainder(RUN.line, 1, 10, 1)
    assert branches.waits()
    assert not branches.takes(False, RUN.line, RUN.loop, now, is_extra=False)
    assert branches.takes(False, RUN.line, RUN.loop, now, is_extra=True)
    assert not branches.takes(False, "train.py:9", RUN.loop, now, is_extra=True)  # within it: a part of it
    branches.is_over(RUN.line, BranchMoment(9, 1, 64))
    assert branches.runs == [BranchRun(RUN.line, RUN.loop, 5, 9, 64)]
    assert not branches.takes(False, RUN.line, RUN.loop, now, is_extra=True)
    assert not branches.waits()


@pytest.mark.parametrize(
    ("readings", "turns", "times"),
    [
        ([(0, 50, 0), (1, 50, 1)], None, 20),  # steps
        ([(32, 1600, 1), (64, 1600, 2)], None, 20),  # samples
        ([(0, 400, 0), (1, 400, 0), (8, 400, 1)], None, 20),  # eight batches a step
        ([(0, 5, 3)], 12, 3),  # epochs 0, 5 and 10, of which one was seen
        ([(1, 5, 3)], 12, 2),
        ([(0, 5, 3)], None, 0),
        ([(0, 2000, 0), (1, 2000, 1)], None, 1),  # in turn 0 alone
        ([(1, 2000, 0), (2, 2000, 1)], None, 0),
        ([], 12, 0),
        ([(1, 500, 0), (900, 500, 0), (905, 500, 1), (910, 500, 2)], None, 10),  # what came before the first step
    ],
)
def test_how_often_a_branch_is_taken_follows_from_its_counter(readings, turns, times):
    assert TurnBranches(counts={RUN.line: readings}).times(RUN, 1000, turns) == times


@pytest.mark.parametrize(
    ("readings", "turns"),
    [
        (
            [(frame, 4, max(0, (frame - 1) // 4 - 25)) for frame in range(101, 113)],
            4,
        ),  # a replay buffer was filled first
        ([(100, 5, 0), *((turn, 5, 1) for turn in range(101, 106))], 5),  # the first turn that counts is due
        ([(turn, 5, turn) for turn in range(4)], 1),  # a generator's, beside its critic's steps
        ([(rows, 64, (rows - 1) // 64) for rows in range(16, 200, 16)], 4),
    ],
)
def test_a_branch_that_makes_all_steps_says_how_many_turns_one_takes(readings, turns):
    branches = TurnBranches(cycles={"train.py:5": readings})
    assert branches.turns_of_a_step("train.py", 2, 9) == turns
    assert branches.turns_of_a_step("train.py", 6, 9) == 1
    assert branches.turns_of_a_step("other.py", 2, 9) == 1
