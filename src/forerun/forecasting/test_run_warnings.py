"""A start-up that was stated is listed as assumed; of checkpoints it is said what is written and what is waited for."""

from forerun.forecasting.run_warnings import checkpoint_warning, length_warning, startup_warning
from forerun.records import Range, RunForecast, RunPhases
from forerun.trace import Trace


def run(startup=30.0, whole=37.5, count=48, waiting=0.8):
    return RunForecast(
        steps_per_epoch=1, total_steps=1, checkpoints_written=count, checkpoint_bytes=768 * 2**20,
        seconds=Range(optimistic=whole, expected=whole, conservative=whole), cost=None,
        phases=RunPhases(startup_seconds=startup, training_seconds=1, checkpoint_seconds=waiting),
    )  # fmt: skip


def test_a_stated_start_up_is_assumed_with_its_share():
    (warning,) = startup_warning(run(), is_stated=True)
    assert warning.startswith("Assumed: 30.0 s of start-up (imports, weights, data), 80.0 % of the run")
    assert startup_warning(run(), is_stated=False) == []
    assert startup_warning(run(whole=36_000.0), is_stated=True) == [], "30 s of ten hours change nothing"


def test_what_checkpoints_write_and_what_training_waits_for():
    (warning,) = checkpoint_warning(run(), 0.8)
    assert warning.startswith("Checkpoints: 48 x 768 MiB take 38.4 s to write, beside training; it waits for 800 ms")
    assert checkpoint_warning(run(waiting=48 * 0.8), 0.8) == [], "in the foreground all of it is waited for"
    assert checkpoint_warning(run(count=1), 0.8) == []


def test_lengths_beyond_what_weights_have_seen_are_said():
    (warning,) = length_warning(Trace(positions=8192, sequence_length=16384))
    assert warning.startswith("batch.sequence_length: the model was made for 8,192 tokens; found 16,384.")
    assert length_warning(Trace(positions=8192, sequence_length=8192)) == []
    assert length_warning(Trace(sequence_length=10**6)) == [], "no limit"
