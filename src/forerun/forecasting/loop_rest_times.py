"""Seconds of what a program does beside its steps, and how often its run has each: evaluation, saving, branches.

Not covered: what later turns of a loop do more of than the one that was seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import replay_clock
from forerun.forecasting.step_model import STATED_DISK_BYTES_PER_SECOND
from forerun.records import Record
from forerun.trace import Trace
from forerun.virtual.cuda.loop_rests import Cut, LoopRest
from forerun.virtual.cuda.records import TrainingLoop
from forerun.virtual.cuda.trainer_lengths import ProgramLength
from forerun.virtual.cuda.turn_branches import BranchRun


class LoopRestTime(Record):
    """What the program does beside its steps, after each pass of a loop or in some turns: evaluation, saving."""

    line: str
    """File and line of the loop, or of the branch that is taken in some turns."""
    seconds: float
    """Of one rest on the device and its host."""
    times: int
    """In the whole run."""
    saved_bytes: int
    """Of checkpoints that are written in one."""
    is_branch: bool = False
    """It is done in some turns of a loop only, as an `if` of the program decides."""
    is_last: bool = False
    """It follows the last loop, at whose line it stands."""
    training_seconds: float = 0.0
    """Of them, those up to the last update of another optimizer: a generator's, behind its critic's."""


def rest_times(
    trace: Trace, loop: TrainingLoop, length: ProgramLength | None, costs: PriorCosts, step_seconds: float
) -> list[LoopRestTime]:
    """What a training loop of a known length does beside its steps, which take `step_seconds`."""
    if length is None:
        return []

    def seconds_of(part: LoopRest | BranchRun) -> float:
        return replay_clock(trace.part(part.begin, part.end), costs).seconds

    def seconds_unseen(part: LoopRest | BranchRun, others: Sequence[BranchRun] = ()) -> float:
        """Of the turns and batches that were not run here, those of `others` apart."""
        inside = [cut for cut in loop.between.cuts if part.begin <= cut.begin and cut.end <= part.end]
        inside = [cut for cut in inside if not any(each.begin <= cut.begin and cut.end <= each.end for each in others)]
        return _seconds_unseen(inside, trace, costs)

    passes = dict(length.loops)
    branches = _branches_of(loop)
    turn_seconds = step_seconds * _share_of_turn(trace, loop, costs)
    rows = [
        LoopRestTime(
            line=each.line, seconds=seconds_of(each) + seconds_unseen(each), times=times, saved_bytes=each.saved_bytes,
            is_branch=True, training_seconds=seconds_of(each) * loop.between.branches.is_rare(each.line),
        )
        for each in branches
        if (times := _times(each, loop, length))
    ]  # fmt: skip
    for rest in loop.between.rests:
        inside = [each for each in branches if rest.begin <= each.begin and each.end <= rest.end]
        seconds = seconds_of(rest) - sum(map(seconds_of, inside)) - rest.has_step * turn_seconds
        saved_bytes = rest.saved_bytes - sum(each.saved_bytes for each in inside)
        if rest.is_last and seconds <= 0 and not saved_bytes:
            continue  # the program ends with its loop
        times = max(1, length.steps // max(1, passes.get(rest.line, length.steps)))
        rows.append(
            LoopRestTime(
                line=rest.line,
                seconds=max(0.0, seconds) + seconds_unseen(rest, inside),
                times=times,
                saved_bytes=saved_bytes,
                is_last=rest.is_last,
                training_seconds=min(max(0.0, seconds), _training_seconds(rest, branches, seconds_of)),
            )
        )
    return rows


def _seconds_unseen(cuts: Sequence[Cut], trace: Trace, costs: PriorCosts) -> float:
    """Of what was ended early, each all of it by its share without what was run; what is in another one comes first."""
    total, parts = 0.0, list[tuple[Cut, float]]()
    for cut in cuts:
        inside = [(part, unseen) for part, unseen in parts if cut.begin <= part.begin and part.end <= cut.end]
        seconds = replay_clock(trace.part(cut.begin, cut.end), costs).seconds
        before = sum(unseen for _, unseen in inside)
        unseen = (seconds + before) / cut.share - seconds
        parts = [each for each in parts if each not in inside] + [(cut, unseen)]
        total += unseen - before
    return total


def rests_until_the_end(
    trace: Trace, loop: TrainingLoop, length: ProgramLength | None, costs: PriorCosts, step_seconds: float
) -> tuple[ProgramLength | None, list[LoopRestTime]]:
    """The length of a loop, which may end by the clock, and what it does beside its steps, of whose time it takes."""
    if length is None or length.clock is None:
        return length, rest_times(trace, loop, length, costs, step_seconds)
    result = by_clock(length, step_seconds)
    for _ in range(2):
        rests = rest_times(trace, loop, result, costs, step_seconds)
        seconds = sum(
            each.times * (each.seconds + each.saved_bytes / STATED_DISK_BYTES_PER_SECOND)
            for each in rests
            if not each.is_last
        )
        result = by_clock(replace(result, clock=length.clock), step_seconds, seconds)
    return result, rest_times(trace, loop, result, costs, step_seconds)


def by_clock(length: ProgramLength, step_seconds: float, rest_seconds: float = 0.0) -> ProgramLength:
    """A length whose steps are as many as the clock lets be made.

    `rest_seconds` are those that the run of this length takes beside its steps.
    """
    clock = length.clock
    if clock is None or not length.steps or step_seconds <= 0:
        return length
    seconds = step_seconds + rest_seconds / length.steps
    of_loop = length.loops[clock.place][1]
    share = max(1, int(clock.seconds / seconds)) / of_loop
    if not clock.is_only and share >= 1:
        return length
    loops = (
        *length.loops[: clock.place],
        *((line, round(share * steps)) for line, steps in length.loops[clock.place :]),
    )
    epoch = None if clock.is_only and clock.place == 0 else length.steps_per_epoch
    source = f"the clock at {clock.line}, which ends the loop after {clock.seconds:,.0f} s"
    return replace(length, steps=max(1, round(share * length.steps)), loops=loops, source=source, steps_per_epoch=epoch)


def _training_seconds(
    rest: LoopRest, branches: Sequence[BranchRun], seconds_of: Callable[[LoopRest | BranchRun], float]
) -> float:
    """Of a rest up to the last update of another optimizer in it, without branches; 0 where there is none."""
    if rest.turn_begin <= rest.begin:
        return 0.0
    inside = [each for each in branches if rest.begin <= each.begin and each.end <= rest.turn_begin]
    return max(0.0, seconds_of(replace(rest, end=rest.turn_begin)) - sum(map(seconds_of, inside)))


def _share_of_turn(trace: Trace, loop: TrainingLoop, costs: PriorCosts) -> float:
    """Share of a step from where its loop's turn begins: what of it was run behind a pass, up to its update."""
    span = loop.spans[-1] if loop.spans else None
    if span is None or span.turn_begin <= span.begin:
        return 1.0
    turn, whole = (replay_clock(trace.part(begin, span.end), costs) for begin in (span.turn_begin, span.begin))
    return turn.seconds / whole.seconds if whole.seconds else 1.0


def _branches_of(loop: TrainingLoop) -> list[BranchRun]:
    """The last run of each branch that is not due within the warm steps: what those have is in the mean step.

    One that was due there once, by a counter that began at 0, is not.
    """
    runs = {run.line: run for run in loop.between.branches.runs if loop.between.branches.is_of_turns(run.line)}
    if not loop.spans:
        return list(runs.values())
    warm, branches = loop.spans[loop.warm_from :], loop.between.branches
    in_steps = {
        run.line
        for run in branches.runs
        for span in warm  # a turn that is no step may be between two of them
        if span.begin <= run.begin < span.end and branches.recurs(run, len(warm))
    }
    return [run for line, run in runs.items() if line not in in_steps]


def _times(run: BranchRun, loop: TrainingLoop, length: ProgramLength) -> int:
    """How often the run has a branch."""
    passes = max(1, length.steps // max(1, dict(length.loops).get(run.loop, length.steps)))
    return loop.between.branches.times(run, length.steps, _turns(run.loop, length), passes)


def _turns(line: str, length: ProgramLength) -> int | None:
    """Turns of the loop at a line in the whole run; None where it is none around the steps."""
    within = 1
    for loop, steps in length.loops:
        if loop == line:
            return length.steps // max(1, within)
        within = steps
    return None
