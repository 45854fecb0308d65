"""What of a run beside its steps is assumed or hidden: a start-up that nobody timed, checkpoints, unlearned lengths."""

from forerun.records import RunForecast
from forerun.trace import Trace
from forerun.units import format_bytes, format_percent, format_seconds

WORTH_SAYING_SHARE = 0.01
"""Share of the run below which what is assumed or hidden changes nothing."""


def startup_warning(run: RunForecast, *, is_stated: bool) -> list[str]:
    """A sentence on a start-up that is stated, not timed here; none where it was timed or is next to nothing."""
    seconds, whole = run.phases.startup_seconds, run.seconds.expected
    if not is_stated or not whole or seconds / whole < WORTH_SAYING_SHARE:
        return []
    return [
        f"Assumed: {format_seconds(seconds)} of start-up (imports, weights, data), {format_percent(seconds / whole)} "
        f"of the run; one run on that machine replaces it."
    ]


def checkpoint_warning(run: RunForecast, write_seconds: float) -> list[str]:
    """A sentence on checkpoints whose writing training does not wait for; none where it waits for all of it."""
    writing, waiting = run.checkpoints_written * write_seconds, run.phases.checkpoint_seconds
    hidden = writing - waiting
    if run.checkpoints_written < 2 or hidden <= WORTH_SAYING_SHARE * writing:
        return []
    return [
        f"Checkpoints: {run.checkpoints_written} x {format_bytes(run.checkpoint_bytes)} take {format_seconds(writing)} "
        f"to write, beside training; it waits for {format_seconds(waiting)} of that, the last one and what is slower "
        f"than the steps between two. With checkpoints.background=never it waits for all."
    ]


def length_warning(trace: Trace) -> list[str]:
    """A sentence on sequences beyond the positions that a model's weights have seen; none where they are within."""
    if not trace.positions or trace.sequence_length <= trace.positions:
        return []
    return [
        f"batch.sequence_length: the model was made for {trace.positions:,} tokens; found {trace.sequence_length:,}. "
        f"Positions beyond are computed, but published weights have not seen them."
    ]
