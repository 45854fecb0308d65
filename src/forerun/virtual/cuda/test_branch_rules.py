"""How often branches are due, by their conditions as programs write them, against the programs themselves."""

import ast

import pytest

from forerun.virtual.cuda.later_loops import LOOPS
from forerun.virtual.cuda.turn_branches import (
    IS_OVER,
    REMAINDER,
    TAKES,
    BranchMoment,
    BranchRun,
    TurnBranches,
    mark_branches,
)

STEPS = 200
NAMES = {"PERIOD": 20, "SAVES": True, "OFF": False, "START": 50}


def branches_of(test: str, body: str, steps: int) -> tuple[TurnBranches, int]:
    """The branch of a loop of so many turns, and how often it was taken because it was due."""
    tree = ast.parse(
        f"while turn < TURNS:\n    {body}\n    backward()\n    if {test}:\n        evaluate()\n    turn += 1\n"
    )
    mark_branches(tree, "train.py", {"backward"}, lambda node: isinstance(node, LOOPS))
    branches, due = TurnBranches(), []
    state = {**NAMES, "TURNS": steps, "turn": 0, "backward": lambda: None, "evaluate": lambda: due.append(1)}
    state |= {
        REMAINDER: lambda counter, period, residue, line, *of: branches.remainder(
            line, counter, period, state["turn"], residue
        ),
        TAKES: lambda is_due, line, loop, *beside: branches.takes(
            is_due, line, loop, BranchMoment(0, state["turn"], 0), *beside, is_extra=False
        ),
        IS_OVER: lambda line: branches.is_over(line, BranchMoment(0, 0, 0)),
    }
    exec(compile(ast.fix_missing_locations(tree), "train.py", "exec"), state)
    return branches, len(due)


@pytest.mark.parametrize(
    "test",
    [
        "turn % PERIOD == 0",
        "(turn + 1) % PERIOD == 0",
        "turn % PERIOD == PERIOD - 1",
        "turn > 0 and turn % PERIOD == 0",
        "turn % PERIOD == 0 and turn != 0",
        "not turn % PERIOD and turn",
        "turn >= START and (turn + 1) % 20 == 0",
        "turn % PERIOD == 0 and turn > 99",
        "(turn - 10) % PERIOD == 0 and SAVES",
        "turn % PERIOD == 0 and OFF",
        "turn % 7 == 0",
        "turn % 300 == 0",
        "samples % 320 == 0",
        "samples % 320 == 0 and samples > 0",
    ],
)
def test_a_few_turns_say_how_often_a_branch_is_due_in_all(test):
    body = "samples = 16 * turn"
    _, due = branches_of(test, body, STEPS)
    branches, _ = branches_of(test, body, 4)
    run = BranchRun("train.py:4", "train.py:1", 0, 1, 0)
    assert branches.times(run, STEPS, None) == due


def test_a_loop_that_begins_anew_begins_its_counter_anew():
    branches, _ = branches_of("turn % 50 == 0", "pass", 4)
    branches.of_loops.add("train.py:4")
    assert branches.times(BranchRun("train.py:4", "train.py:1", 0, 1, 0), 10 * 312, 10 * 312, passes=10) == 10 * 7


def test_an_option_that_is_off_takes_no_branch_in_an_extra_turn():
    branches, now = TurnBranches(), BranchMoment(0, 1, 0)
    branches.remainder("train.py:4", 3, 10, 1)
    assert not branches.takes(False, "train.py:4", "train.py:1", now, lambda: False, is_extra=True)
    assert not branches.waits()
    branches.remainder("train.py:5", 3, 10, 1)
    assert branches.takes(False, "train.py:5", "train.py:1", now, lambda: nobody_knows, is_extra=True)  # noqa: F821
