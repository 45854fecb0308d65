"""Counters of `while` loops against the loops run to their end."""

import ast

import pytest

from forerun.virtual.cuda.loop_counters import LoopCounters


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("by", [1, 7])
@pytest.mark.parametrize("reads_before", [True, False])
@pytest.mark.parametrize(
    "loop",
    [
        "while count < 50: TURN",
        "while count <= 49 and True: TURN",
        "while True:\n TURN\n if count >= 50: break",
        "while True:\n TURN\n if count > 49: break",
    ],
)
def test_turns_are_those_of_the_loop(loop, start, by, reads_before):
    """Whether the step is asked about before or after the counter rises."""
    turn = f"step(count); count += {by}" if reads_before else f"count += {by}; step(count)"
    counters, answers = LoopCounters(), []
    text = loop.replace("TURN", turn)
    (node,) = ast.parse(text).body

    def step(count):
        answers.append(counters.turns(node, "train.py:1", {"count": count}))

    exec(text, {"step": step, "count": start})
    assert len(answers) > 5
    assert answers[0] is None
    assert answers[1] == pytest.approx(len(answers), abs=1)  # a step before and after its counter are not told apart
    assert answers[1] == answers[2] == answers[3]


def test_what_falls_or_stands_is_no_counter():
    (node,) = ast.parse("while count < limit: pass").body
    counters = LoopCounters()
    assert [counters.turns(node, "x", {"count": n, "limit": 9}) for n in (5, 4, 4)] == [None, None, None]
    assert counters.turns(node, "x", {"count": float("nan"), "limit": 9}) is None
    assert counters.turns(node, "x", {"limit": 9}) is None
