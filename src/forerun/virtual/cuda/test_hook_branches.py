"""Which branches of functions that do not train may be decided by a training loop's turns."""

import ast

import pytest

from forerun.virtual.cuda.hook_branches import branches_of_hooks
from forerun.virtual.cuda.turn_branches import HOOK, BranchMoment, BranchRun, TurnBranches

RUN = BranchRun("hooks.py:2", HOOK, 0, 10, 0)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("def after_step(trainer):\n    if trainer.step % 500 == 0:\n        evaluate()\n", 1),
        ("def train():\n    if step % 500 == 0:\n        evaluate()\n", 0),
        ("def evaluate():\n    for batch in loader:\n        if batch % 10 == 0:\n            print(batch)\n", 0),
        ("class Net:\n    def forward(self, x):\n        if self.step % 2 == 0:\n            x = flip(x)\n", 0),
        (
            "def mixed(x, i):\n    if i % 2 == 0:\n        x = flip(x)\n"
            "class Net:\n    def forward(self, x):\n        return self.inner(mixed(x, 1))\n",
            0,
        ),
    ],
)
def test_branches_of_hooks_are_those_that_no_model_calls(source, count):
    assert len(list(branches_of_hooks(ast.parse(source), {"train"}))) == count


@pytest.mark.parametrize(
    ("readings", "is_of_turns", "times"),
    [
        ([(0, 500, 1), (1, 500, 2), (2, 500, 3)], True, 3),  # refused in turn 0
        ([(0, 500, 1), (1, 500, 2), (2, 500, 3), (3, 500, 3)], True, 3),  # in one more turn, which is no step
        ([(0, 2, 1), (1, 2, 1), (2, 2, 1), (0, 2, 2), (1, 2, 2)], False, 0),  # over layers
        ([(0, 2, 1), (1, 2, 9)], False, 0),  # over epochs
        ([(0, 500, 1)], False, 0),
    ],
)
def test_a_hook_is_reached_once_after_each_step(readings, is_of_turns, times):
    branches = TurnBranches()
    for reading in readings:
        branches.remainder(RUN.line, *reading)
        if branches.takes(False, RUN.line, HOOK, BranchMoment(0, reading[-1], 0), is_extra=False):
            raise AssertionError
    assert branches.is_of_turns(RUN.line) is is_of_turns
    assert branches.waits() is is_of_turns
    assert branches.times(RUN, 2000, None) == times
