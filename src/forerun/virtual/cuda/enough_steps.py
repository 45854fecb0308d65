"""When enough steps of a training loop were seen."""

from collections.abc import Sequence

from forerun.virtual.cuda.records import StepSpan
from forerun.virtual.cuda.turn_branches import TurnBranches

ALIKE = 2
"""Steps in a row that must be alike before the program is stopped."""
STEPS_OF_GROWTH = 5
"""Steps that are seen of a program whose memory grows: enough to tell that it goes on."""
MOST_STEPS = 12
"""A program whose steps never repeat, such as one with rows of all lengths, is stopped after so many."""
MOST_MICRO_BATCHES, MOST_OPERATORS = 32, 150_000
"""One that accumulates gradients, or is large (1.5 minutes here), shows as many lengths in fewer steps."""


class ProgramStopped(BaseException):
    """Enough steps were seen. No `Exception`: a program's own handlers must not take it for a fault."""


def is_enough(spans: Sequence[StepSpan], *, operators: int) -> bool:
    """Whether the last steps are alike, or so much was seen that more would not help; `operators` were recorded."""
    last = spans[-ALIKE - 1 :]  # the first step prepares: it makes the optimizer's state
    if len(last) > ALIKE and all(span.is_like(last[-1]) for span in last[1:]):
        is_growing = last[-1].allocated_bytes > last[-2].allocated_bytes
        return not is_growing or len(spans) >= STEPS_OF_GROWTH
    passes = sum(len(span.backward_lines) for span in spans)
    is_much = passes >= MOST_MICRO_BATCHES or operators >= MOST_OPERATORS
    return len(spans) >= MOST_STEPS or (len(last) > ALIKE and is_much)


def first_warm(spans: Sequence[StepSpan], branches: TurnBranches) -> int:
    """Number of the first step that is like the last one: what is before warms up."""
    if 1 < (cycle := branches.cycle_steps) < len(spans) - 1:
        return len(spans) - cycle
    alike = [number for number, span in enumerate(spans) if span.is_like(spans[-1])]
    return alike[0] if len(alike) > 1 else branches.first_like_later(spans)
