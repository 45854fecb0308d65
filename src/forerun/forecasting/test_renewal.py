"""Formulas beside the process that they describe, played out."""

import math
import random
import statistics
from dataclasses import replace

import pytest

from forerun.forecasting.renewal import InterruptedRun, best_every_steps, daly_interval, young_interval

MINUTE, HOUR = 60.0, 3600.0


def play(run: InterruptedRun, draw: random.Random) -> float:
    """Seconds of one run, event by event."""
    now, next_failure = 0.0, draw.expovariate(1 / run.mean_seconds)
    durable = 0.0  # work that a checkpoint keeps
    starting = run.startup_seconds
    while True:
        begun, at = durable, now + starting
        waits: list[tuple[float, float]] = []  # moments from which work is durable, while this attempt goes on
        busy_until = 0.0  # of the writer
        while begun < run.work_seconds - 1e-9:
            piece = min(run.interval_seconds, run.work_seconds - begun)
            begun, at = begun + piece, max(at + piece + run.wait_seconds, busy_until)
            busy_until = at + run.lag_seconds
            waits.append((busy_until, begun))
            if at > next_failure:
                break
        if waits[-1][0] <= next_failure:
            return waits[-1][0]
        durable = max([durable, *(work for moment, work in waits if moment <= next_failure)])
        now, starting = next_failure, run.restart_seconds
        next_failure = now + draw.expovariate(1 / run.mean_seconds)


RUNS = [
    InterruptedRun(40 * HOUR, 1 * HOUR, 6 * HOUR, wait_seconds=300, restart_seconds=600),
    InterruptedRun(40 * HOUR, 1.7 * HOUR, 3 * HOUR, lag_seconds=900, restart_seconds=600, startup_seconds=1200),
    InterruptedRun(10 * HOUR, 0.5 * HOUR, 1 * HOUR, wait_seconds=60, lag_seconds=600, restart_seconds=1800),
    InterruptedRun(5 * HOUR, 8 * HOUR, 4 * HOUR, wait_seconds=120, lag_seconds=60, restart_seconds=300),
]


@pytest.mark.parametrize("run", RUNS)
def test_expected_time_lies_within_four_standard_errors_of_runs_played_out(run):
    draw = random.Random(20261123)
    seconds = [play(run, draw) for _ in range(3000)]
    error = statistics.stdev(seconds) / math.sqrt(len(seconds))
    assert error < 0.02 * run.expected_seconds
    assert abs(statistics.fmean(seconds) - run.expected_seconds) < 4 * error
    assert run.expected_seconds > run.undisturbed_seconds + 10 * error


def test_a_run_that_nothing_interrupts_takes_its_work_and_its_checkpoints():
    run = InterruptedRun(100, 10, math.inf, wait_seconds=1, lag_seconds=5, startup_seconds=7)
    assert run.expected_seconds == pytest.approx(100 + 10 + 5 + 7)
    assert replace(run, mean_seconds=1e12).expected_seconds == pytest.approx(122, rel=1e-6)


def test_a_run_with_restarts_longer_than_it_is_left_alone_for_never_ends():
    assert InterruptedRun(1e6, 1e6, 60).expected_seconds == math.inf


@pytest.mark.literature
@pytest.mark.parametrize(("mean_hours", "minutes"), [(24, 117), (6, 57), (0.25, 9.1)])
def test_intervals_of_dalys_figures_3_to_5(mean_hours, minutes):
    """delta = 5 min; doi:10.1016/j.future.2004.11.016, captions."""
    assert daly_interval(5 * MINUTE, mean_hours * HOUR) / MINUTE == pytest.approx(minutes, rel=0.006)


@pytest.mark.parametrize("mean", [2 * HOUR, 12 * HOUR, 100 * HOUR])
def test_dalys_interval_is_the_best_of_all_numbers_of_steps(mean):
    run = InterruptedRun(200 * HOUR, HOUR, mean, wait_seconds=240, restart_seconds=900)
    every = [replace(run, interval_seconds=n * 30.0).expected_seconds for n in range(1, 2000)]
    best = every[best_every_steps(run, 30.0, 24_000) - 1]
    assert best == pytest.approx(min(every), rel=2e-4)
    assert replace(run, interval_seconds=young_interval(240, mean)).expected_seconds >= min(every)


def test_a_checkpoint_that_stops_nothing_is_written_as_soon_as_the_last_is_durable():
    run = InterruptedRun(100 * HOUR, HOUR, 10 * HOUR, lag_seconds=95, restart_seconds=600)
    assert best_every_steps(run, 10.0, 36_000) == 10
    assert best_every_steps(replace(run, mean_seconds=math.inf), 10.0, 36_000) == 36_000
