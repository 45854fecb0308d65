"""What a program does on the device before it trains, such as features that it makes once; all of one that does not.

Not covered: what the host computes meanwhile, such as weights that it draws, and rows that it reads.
"""

from collections.abc import Sequence

from forerun.clock.host_speed import host_shares
from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import replay_clock
from forerun.forecasting.host_warnings import without_host_work
from forerun.forecasting.ranges import PROGRAM, group_of, step_range
from forerun.records import Range
from forerun.trace import Trace
from forerun.units import format_seconds
from forerun.virtual.cuda.records import TrainingLoop
from forerun.virtual.cuda.run import ProgramRun

LEAST_TOLD_SHARE, LEAST_TOLD_SECONDS = 0.02, 0.1
"""Of the whole run, and at all."""
NO_STEP = "No optimizer step and no backward pass was seen"
NO_TIME = f"{NO_STEP}, so no time is forecast: the program ended before its first one, or it does not train."
NO_TRAINING = f"{NO_STEP}: the program does not train. Run and cost are of all that it did on the GPU."


def seconds_before(run: ProgramRun, costs: PriorCosts, step_seconds: Sequence[float]) -> float:
    """Before the first step of each training loop of a program, whose steps take `step_seconds`.

    Where such a loop is a library's, whose begin is not known, its first step has what came before. Without any step it
    is all that the program did; 0 where it failed.
    """
    trace, loops = run.session.recorder.trace, [*run.watcher.earlier, run.watcher.loop]
    if not any(loop.spans for loop in loops):
        has_failed = run.exit_code or run.out_of_memory is not None
        return 0.0 if has_failed else replay_clock(_part(trace, 0, len(trace.events)), costs).seconds
    before = [None, *loops[:-1]]
    return sum(
        _seconds_before(trace, loop, costs, seconds)
        for last, loop, seconds in zip(before, loops, step_seconds, strict=True)
        if last is None or not last.stage.until  # a stage is of the same loop
    )


def _seconds_before(trace: Trace, loop: TrainingLoop, costs: PriorCosts, step_seconds: float) -> float:
    """The same of one loop, behind the one before it."""
    if not loop.spans:
        return 0.0
    begin, first = loop.between.starts.first_event, loop.spans[0]
    seconds = replay_clock(_part(trace, first.begin, first.end if begin is None else begin), costs).seconds
    return max(0.0, seconds - step_seconds) if begin is None else seconds


def range_without_steps(run: ProgramRun, costs: PriorCosts, seconds: float) -> Range:
    """Scenarios of `seconds`, which are all that a program without a step takes."""
    trace = run.session.recorder.trace
    part = _part(trace, 0, len(trace.events))
    return step_range(seconds, group_of(trace, costs, PROGRAM), host_shares([(part, replay_clock(part, costs))], costs))


def before_warnings(seconds: float, loop: TrainingLoop, run_seconds: float) -> list[str]:
    """That a program does something before it trains that takes a part of its run."""
    if not loop.spans or seconds < max(LEAST_TOLD_SECONDS, LEAST_TOLD_SHARE * run_seconds):
        return []
    return [
        f"Before its first step, and between its loops that train, the program takes {format_seconds(seconds)} on the "
        "GPU: the run has them as startup."
    ]


def _part(trace: Trace, begin: int, end: int) -> Trace:
    return without_host_work(trace.part(begin, end))
