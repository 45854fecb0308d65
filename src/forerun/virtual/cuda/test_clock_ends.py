"""Loops that end by the clock, as programs write them."""

import ast
import time

import pytest
from tests.exec_runs import forecast

from forerun.forecasting.loop_rest_times import by_clock
from forerun.virtual.cuda.clock_ends import ClockEnd, clock_end_of
from forerun.virtual.cuda.trainer_lengths import ProgramLength


@pytest.mark.parametrize(
    ("source", "seconds"),
    [
        ("while time.time() - start < budget:\n    train()", 600),
        ("while (time.perf_counter() - start) / 60 <= 3:\n    train()", 180),
        ("while step < 10 and budget > time.time() - start:\n    train()", 600),
        ("while True:\n    train()\n    if time.monotonic() - start > 2 * budget: break", 1200),
        ("while True:\n    train()\n    hours = (time.time() - start) / 3600\n    if hours >= 2: break", 7200),
        ("for epoch in range(9):\n    train()\n    if (time.time() - start) > 3600 * 0.5: return", 1800),
        ("while step < 10:\n    train()", None),
        ("while time.time() - start > budget:\n    train()", None),
        ("while time.time() - start < nobody_knows:\n    train()", None),
    ],
)
def test_the_seconds_after_which_a_loop_ends(source, seconds):
    end = clock_end_of(ast.parse(source).body[0], "train.py:1", {"start": time.time(), "budget": 600, "step": 1})
    assert (end and end.seconds) == (seconds and pytest.approx(seconds, abs=1))


def test_a_deadline_is_what_is_left_of_the_clock():
    end = clock_end_of(ast.parse("while time.time() < deadline: train()").body[0], "", {"deadline": time.time() + 90})
    assert end is not None
    assert end.seconds == pytest.approx(90, abs=2)


@pytest.mark.parametrize(
    ("is_only", "step_seconds", "steps", "epochs"),
    [(True, 0.1, 3000, 3000), (False, 0.1, 500, 500), (False, 1.0, 300, 300)],
)
def test_as_many_steps_as_fit(is_only, step_seconds, steps, epochs):
    loops = (("train.py:3", 50), ("train.py:2", 500))
    clock = ClockEnd("train.py:2", 300, place=1, is_only=is_only)
    length = by_clock(ProgramLength(500, "the loops", 50, loops=loops, clock=clock), step_seconds)
    assert (length.steps, length.loops[-1][1], length.loops[0][1]) == (steps, epochs, 50)


def test_a_program_that_trains_for_ten_minutes(tmp_path):
    body = """
    import time
    start = time.time()
    while time.time() - start < 600:
        for batch in range(50):
            update()
        torch.save(model.state_dict(), "model.pt")
    """
    document, _ = forecast(tmp_path, body)
    assert document.run.seconds.expected == pytest.approx(600, rel=0.02)
    assert document.run.total_steps == pytest.approx(50 * document.run.checkpoints_written, rel=0.01)
    assert any("ends by the clock" in text for text in document.warnings)
