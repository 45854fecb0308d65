"""Steps that follow a pass of an outer loop and are not those that the forecast is of: larger pictures, longer rows.

A program is stopped once its steps repeat; behind each of its loops one more step was seen (`loop_rests.py`). It is
told by the arithmetic of its backward passes, as what came before it, such as an evaluation, has none.

Not covered: steps that change inside of the innermost loop, by a counter of tokens, say, and those in which a branch of
some turns was taken.
"""

from collections.abc import Iterator

from forerun.trace import OP, Phase, Trace
from forerun.virtual.cuda.records import TrainingLoop

DIFFERENT, ALIKE = 0.1, 0.01
"""Relative differences of arithmetic from which on a step is another one, and up to which those before are the same: of
rows that differ in length each is another."""


def later_steps_warnings(trace: Trace, loop: TrainingLoop) -> Iterator[str]:
    """What is to be said of steps behind passes of a training loop that do more or less than those in it."""
    warm = loop.spans[loop.warm_from :]
    before = [backward_flops(trace, max(span.begin, span.turn_begin), span.end) for span in warm]
    if len(before) < 2 or not min(before) or max(before) > (1 + ALIKE) * min(before):
        return
    for rest in loop.between.rests:
        begin = max(rest.begin, rest.turn_begin)
        if not rest.has_step or any(begin <= run.begin < rest.end for run in loop.between.branches.runs):
            continue
        later = backward_flops(trace, begin, rest.end)
        times = later / before[-1]
        if later and abs(times - 1) > DIFFERENT:
            yield (
                f"Steps behind the loop at {rest.line} are others: {times:.2f} times the arithmetic of those in it. "
                "Memory is the highest of both, step and run are at the pace of those in it; what further turns do was "
                "not seen."
            )


def backward_flops(trace: Trace, begin: int, end: int) -> int:
    """Arithmetic of the backward passes from one event of a trace to another."""
    ops = (trace.ops[index] for kind, index in trace.events[begin:end] if kind == OP)
    return sum(trace.calls[op.call].flops for op in ops if op.phase is Phase.BACKWARD)
