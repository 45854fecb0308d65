"""Steps of a program that updates nothing: a script that measures, or one whose gradients are read.

Each of its outermost backward passes ends one, with the forward pass before it. They count only where the program makes
no update at all: until the first one nobody knows whether gradients add up.
"""

from collections.abc import Sequence

from forerun.trace import Trace
from forerun.virtual.cuda.hand_updates import Progress
from forerun.virtual.cuda.loaders import LoaderWatch
from forerun.virtual.cuda.records import StepSpan, work_between

NOTHING_YET = Progress(events=0, calls={}, fetched=0, allocated_bytes=0, line="")


def counts_of(calls: dict[int, tuple[int, int, int]]) -> tuple[int, int]:
    """Samples and tokens of a step by the calls of its modules.

    A discriminator is called more often; of several stages of a pipeline one is given the ids, and a loss may be given
    none.
    """
    counts = [each for each in calls.values() if each[1]]
    _, samples, tokens = min(counts, key=lambda each: (each[0], -each[2]), default=(0, 0, 0))
    return samples, tokens


def spans_of_passes(trace: Trace, passes: Sequence[Progress], loaders: LoaderWatch) -> list[StepSpan]:
    """One step for each backward pass that ended at one of `passes`, each noted since the program began."""
    spans: list[StepSpan] = []
    before = NOTHING_YET
    for each in passes:
        samples, tokens = counts_of(each.calls_since(before))
        fetched = tuple(loaders.take(each.fetched - before.fetched))
        work = work_between(trace, before.events, each.events)
        spans.append(
            StepSpan(before.events, each.events, work, each.allocated_bytes, samples, tokens, fetched, (each.line,))
        )
        before = each
    return spans
