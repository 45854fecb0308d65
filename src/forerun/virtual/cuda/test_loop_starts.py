"""What stands before a loop that begins anew is no part of a step."""

from forerun.virtual.cuda.hand_updates import Progress
from forerun.virtual.cuda.loop_starts import LoopStarts


def at(events: int) -> Progress:
    return Progress(events, {1: (events, events, 0)}, events, 0, "train.py:1")


def test_a_loop_of_some_steps_parts_what_is_before_it_from_the_step():
    starts = LoopStarts()
    for begin, has_inner in ((0, True), (10, False), (20, True)):
        if has_inner:
            starts.note("train.py:4", at(begin + 3), 7, begin)
        starts.note("train.py:5", at(begin + 4), 7, begin)  # over micro-batches
        start = starts.take(begin + 10)
        assert (start is not None) == (begin == 20)
    assert start is not None
    assert (start.line, start.saved_bytes, start.is_only) == ("train.py:4", 7, True)
    rest = start.rest_of(at(30))
    assert (rest.events, rest.fetched, rest.calls) == (30, 7, {1: (7, 7, 0)})


def test_a_loop_that_begins_behind_a_backward_pass_of_the_step_is_a_part_of_it():
    starts = LoopStarts()
    starts.note("train.py:4", at(1), 0, 0)
    assert starts.take(5) is None
    assert starts.take(10) is None
    starts.last_pass = 12
    starts.note("train.py:4", at(14), 0, 10)
    assert starts.take(20) is None
