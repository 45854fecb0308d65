"""Which steps of an optimizer end an update, by the passes between them."""

from types import SimpleNamespace

import pytest

from forerun.virtual.cuda.update_parts import OtherUpdates, UpdateParts

CALL = {1: (1, 8, 0)}


def ends(updates, has_passes=True):
    """Whether each step of an optimizer ends one; `updates` has how many parts each has, after a pass of its own."""
    parts, spans, lines, calls, whole = UpdateParts(), [], [], {}, []
    for count in updates:
        lines, calls = ([*lines, "train.py:7"], CALL) if has_passes else ([], {})
        for _ in range(count):
            whole.append(parts.is_whole(spans, lines, calls))
            if whole[-1]:
                spans.append(SimpleNamespace(backward_lines=lines))
                lines, calls = [], {}
    return whole


@pytest.mark.parametrize(
    ("updates", "whole"),
    [
        ([1, 1, 1], [1, 1, 1]),
        ([2, 2, 2], [1, 0, 0, 1, 0, 1]),  # known from the second update on
        ([3, 3], [1, 0, 0, 0, 0, 1]),
        ([1, 1, 2, 1, 1, 1], [1, 1, 1, 0, 0, 1, 1]),  # what was left over at the end of an epoch, say
    ],
)
def test_an_update_ends_with_its_last_part(updates, whole):
    assert ends(updates) == [bool(each) for each in whole]


def test_without_passes_each_step_is_an_update():
    assert ends([2, 2, 2], has_passes=False) == [True] * 6


@pytest.mark.parametrize(
    ("others", "ends_at"),
    [
        (["g"], "g"),  # a generator behind its discriminator
        (["g", "h"], "h"),
        ([], "a"),
    ],
)
def test_a_loop_is_ended_behind_the_last_optimizer_of_a_turn(others, ends_at):
    updates = OtherUpdates()
    for event in range(2):
        updates.next_step()
        for _ in others:
            updates.are_too_many()
            assert not updates.end_turn(event)
    updates.next_step()
    ends = "a" if not updates.awaits() else ""
    for other in others:
        updates.are_too_many()
        ends = ends or (other if updates.end_turn(9) else "")
    assert ends == ends_at


def test_a_loop_whose_other_optimizer_does_not_come_is_ended_at_the_next_step():
    updates = OtherUpdates()
    updates.next_step()
    updates.are_too_many()
    updates.next_step()
    assert updates.awaits()
    updates.next_step()
    assert not updates.awaits()


def test_an_optimizer_inside_of_another_is_over_with_it():
    updates = OtherUpdates()
    for _ in range(2):
        updates.next_step()
        updates.are_too_many()
    assert not updates.awaits()
