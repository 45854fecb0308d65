"""Counters of loops against the loops run to their end."""

import ast
from argparse import Namespace
from types import SimpleNamespace

import pytest

from forerun.virtual.cuda.loop_counters import LoopCounters, can_be_left


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("by", [1, 7])
@pytest.mark.parametrize("reads_before", [True, False])
@pytest.mark.parametrize(
    "loop",
    [
        "while count < 50: TURN",
        "while count <= 49 and True: TURN",
        "while not limit or count + start < limit + start: TURN",
        "while True:\n TURN\n if count >= 50: break",
        "while True:\n TURN\n if count > 49: break",
        "done = False\nwhile not done:\n TURN\n done = count >= 50",
        "done = False\nwhile not done:\n TURN\n if count >= 50 and start < 50: done = True",
        "stop = False\nwhile True:\n TURN\n last = 50 <= count\n stop |= count < 0 or last\n if stop: break",
    ],
)
def test_turns_are_those_of_the_loop(loop, start, by, reads_before):
    """Whether the step is asked about before or after the counter rises."""
    turn = f"step(count); count += {by}" if reads_before else f"count += {by}; step(count)"
    counters, answers = LoopCounters(), []
    text = loop.replace("TURN", turn)
    node = ast.parse(text).body[-1]

    def step(count):
        end = counters.end_of(
            node, "train.py:1", {"count": count, "start": start, "limit": 50}, at_line=node.lineno + 1
        )
        answers.append(None if end is None else end.count)

    exec(text, {"step": step, "count": start, "start": start, "limit": 50})
    assert len(answers) > 5
    assert answers[0] is None
    assert answers[1] == pytest.approx(len(answers), abs=1)  # a step before and after its counter are not told apart
    assert answers[1] == answers[2] == answers[3]


@pytest.mark.parametrize(
    ("condition", "names", "can"),
    [
        ("args.dry_run", {"args": Namespace(dry_run=False)}, False),
        ("args.dry_run", {"args": Namespace(dry_run=True)}, True),
        ("args.target is not None and kl > args.target", {"args": Namespace(target=None), "kl": 1}, False),
        ("args.target is not None and kl > args.target", {"args": Namespace(target=0.1), "kl": 0}, True),
        ("self.stop", {"self": SimpleNamespace(stop=False)}, True),
        ("stop", {"stop": False}, True),
    ],
)
def test_a_break_by_an_option_that_is_off_leaves_no_loop(condition, names, can):
    (node,) = ast.parse(f"for i in range(9):\n try:\n  if {condition}: break\n finally: pass").body
    assert can_be_left(node, names) is can
    assert can_be_left(node)


def test_a_loop_without_a_limit_has_no_end():
    (node,) = ast.parse("while not limit or count < limit: pass").body
    counters = LoopCounters()
    assert [counters.end_of(node, "x", {"count": n, "limit": 0}) for n in (5, 6, 7)] == [None, None, None]
    assert not can_be_left(node)


def test_what_falls_or_stands_is_no_counter():
    (node,) = ast.parse("while count < limit: pass").body
    counters = LoopCounters()
    assert [counters.end_of(node, "x", {"count": n, "limit": 9}) for n in (5, 4, 4)] == [None, None, None]
    assert counters.end_of(node, "x", {"count": float("nan"), "limit": 9}) is None
    assert counters.end_of(node, "x", {"limit": 9}) is None


def test_what_rises_when_the_loop_turns_counts_turns():
    (node,) = ast.parse("while epoch < 9: train()").body
    counters = LoopCounters()
    names = [{"epoch": 2}, {"epoch": 2}, {"epoch": 3}]
    first, same, turned = (counters.end_of(node, "x", each, at_line=2, has_turned=each["epoch"] > 2) for each in names)
    assert first is None
    assert same is None
    assert (turned.count, turned.is_of_steps) == (7, False)


def test_only_plain_values_are_read():
    class Loud(dict):
        def __getitem__(self, key):
            raise AssertionError

    (node,) = ast.parse("while step < rows[0]: pass").body
    counters = LoopCounters()
    assert (
        counters.end_of(node, "x", {"step": 1, "rows": type("Rows", (), {"__getitem__": Loud.__getitem__})()}) is None
    )
    assert counters.end_of(node, "x", {"step": 1, "rows": [5]}) is None
    assert counters.end_of(node, "x", {"step": 2, "rows": [5]}, at_line=2).count == 4


@pytest.mark.parametrize(
    "loop", ["while not stop:\n stop = stop or again\n again = stop", "while not stop: stop = ask()"]
)
def test_flags_that_no_counter_raises_say_nothing(loop):
    (node,) = ast.parse(loop).body
    counters = LoopCounters()
    assert [counters.end_of(node, "x", {"stop": False, "again": False, "n": n}) for n in range(3)] == [None] * 3


@pytest.mark.parametrize(
    ("loop", "is_left"),
    [
        ("while not stop: stop = epoch >= 40", False),
        ("while not stop: stop = bad > 5 or epoch >= 40", True),
        ("while not stop:\n if epoch >= 40: stop = True", False),
        ("while not stop:\n if epoch >= 40: stop = True\n if bad > 5: stop = True", True),
        ("while not stop: ask()", True),
        ("while epoch < 40: pass", False),
    ],
)
def test_a_flag_that_can_be_raised_otherwise_ends_a_loop_early(loop, is_left):
    (node,) = ast.parse(loop).body
    assert can_be_left(node) == is_left
