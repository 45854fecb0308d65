"""The whole run of a program: its steps, and what its trainer would do between them.

The program was stopped after few steps. What its loops do after each pass was seen once. Evaluations and checkpoints
that a trainer of a library announces are priced by what was seen: an evaluated batch takes a training step's forward
pass, a checkpoint writes the trained parameters and the optimizer's state.
"""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import StepTime, replay_clock
from forerun.forecasting.collectives import count_collectives
from forerun.forecasting.host_warnings import without_host_work
from forerun.forecasting.loop_rest_times import LoopRestTime, rest_times
from forerun.forecasting.ranges import in_shares_of
from forerun.forecasting.step_model import STATED_DISK_BYTES_PER_SECOND
from forerun.hardware.catalogue import Device
from forerun.records import MemoryBreakdown, Range, Record, RunForecast, RunPhases
from forerun.trace import ALLOCATE, FREE, OP, Phase, Trace
from forerun.units import format_bytes, format_seconds
from forerun.virtual.cuda.loop_rests import ENDED_AFTER, MOST_SECONDS
from forerun.virtual.cuda.records import TrainingLoop
from forerun.virtual.cuda.run import ProgramRun
from forerun.virtual.cuda.steps import StepWatcher
from forerun.virtual.cuda.trainer_lengths import ProgramLength
from forerun.virtual.cuda.turn_branches import MOST_CYCLE

HOUR = 3600.0
WAITS_FOR_STAGES = "time that a pipeline stage waits for others"
CHECKPOINT_SHARE = 0.1
"""Of the largest file; what is smaller is no checkpoint beside it but samples, say."""
LEAST_TOLD_SECONDS = 1e-3
"""Of all rests of a loop in the run."""
LEAST_TOLD_EXCESS, LEAST_TOLD_BYTES = 0.02, 2**26
"""By which the program's end needs more: of the peak before, and at all."""


FLOAT_BYTES = 4


def steps_from(trace: Trace, loop: TrainingLoop, first: int) -> list[Trace]:
    """The steps of a training loop from a number on, each as a trace of its own."""
    return [trace.part(span.begin, span.end) for span in loop.spans[first:]]


def timed_steps(trace: Trace, loop: TrainingLoop) -> list[Trace]:
    """The warm steps; but the first span holds what came before training, too, such as weights made on the host."""
    if len(loop.spans) > 1:
        return steps_from(trace, loop, max(1, loop.warm_from))
    return [without_host_work(part) for part in steps_from(trace, loop, 0)]


def last_step(trace: Trace, watcher: StepWatcher) -> Trace:
    """The last step of a program as a trace of its own; an empty one where there was none."""
    return trace.part(watcher.spans[-1].begin, watcher.spans[-1].end) if watcher.spans else trace.part(0, 0)


def _rests_seconds(rests: Sequence[LoopRestTime]) -> float:
    return sum(rest.times * (rest.seconds - rest.training_seconds) for rest in rests)


class EarlierLoop(Record):
    """A training loop of the program before the one that the forecast's step is of."""

    line: str
    """File and line that stepped its optimizer."""
    steps_seen: int
    steps: int
    """Of the whole loop; those seen where nobody says how many."""
    is_length_known: bool
    step_seconds: float
    rests: list[LoopRestTime] = []
    """What comes after each pass of its loops."""
    evaluation_seconds: float = 0.0
    """Of all batches that its trainer evaluates."""
    checkpoints: int = 0
    """That its trainer writes."""
    until: str = ""
    """The turn from which on the same loop does something else; empty where it is a loop of its own."""


def earlier_loops(trace: Trace, watcher: StepWatcher, costs: PriorCosts) -> list[EarlierLoop]:
    """The training loops before the last one, at the mean of their warm steps."""
    rows = []
    for loop in watcher.earlier:
        warm = [replay_clock(part, costs) for part in timed_steps(trace, loop)]
        seconds, length = mean_seconds(warm), loop.whole_length
        rows.append(
            EarlierLoop(
                line=loop.line,
                steps_seen=len(loop.spans),
                steps=len(loop.spans) if length is None else length.steps,
                is_length_known=length is not None,
                step_seconds=seconds,
                evaluation_seconds=0.0 if length is None else _evaluation_seconds(warm, length, loop, trace, costs),
                checkpoints=0 if length is None else length.checkpoints,
                until=loop.stage.until,
                rests=rest_times(trace, loop, length, costs, seconds),
            )
        )
    return rows


def loop_warnings(earlier: Sequence[EarlierLoop], run: ProgramRun, rests: Sequence[LoopRestTime] = ()) -> list[str]:
    """What the forecast is of where a program has several loops."""
    watcher = run.watcher
    texts = [
        f"{_when(rest)} the program takes {format_seconds(rest.seconds)} for {_purpose(rest)}."
        for rest in rests
        if rest.times * rest.seconds > LEAST_TOLD_SECONDS
    ]
    texts += [_of_growth(rest, *watcher.between.grown.by_line[rest.line]) for rest in rests if _grows(rest, watcher)]
    if earlier:
        rows = [
            f"{each.line} makes {each.steps:,} steps of {format_seconds(each.step_seconds)}"
            f"{each.until and f' until {each.until}'}"
            for each in earlier
        ]
        texts.append(
            f"{_several(earlier)}: {', '.join(rows)}, then {watcher.step_line}. Memory is the "
            "highest of all, the step is the last one's, the run is all of them."
        )
    if uncounted := watcher.between.others.uncounted:
        texts.append(
            f"The same optimizer makes further steps in each turn of its loops, at {', '.join(uncounted)}; how many "
            "is unknown, and the run is without them. Give --total-steps."
        )
    unknown = [each.line for each in earlier if not each.is_length_known]
    if unknown:
        texts.append(f"How often {', '.join(unknown)} is reached is not known: the run has the steps seen there.")
    texts += [
        f"{line} trains once in {steps:,} steps, which are too many to see: the forecast is without it. --steps "
        f"{steps + 2} runs them."
        for line, steps in watcher.between.branches.steps_of_cycles.items()
        if steps > MOST_CYCLE and len(watcher.spans) <= steps and not watcher.between.branches.is_rare(line)
    ]
    if run.failed_rest:
        failure = f"{run.failed_at}: {run.failed_rest[:100]}"
        texts.append(
            f"What the program does in some turns only ({run.failed_branch}) was done once and failed ({failure}): it "
            "lacks what turns before would have left, or it fails on the card as well. It is in the run as far as it "
            "came."
            if run.failed_branch
            else f"What follows the training loop was run once and failed here ({failure}), as the loop was ended "
            "early: it is in the run as far as it came."
        )
    if of_end := _memory_of_end(run):
        texts.append(of_end)
    if watcher.between.ended_at:
        texts.append(
            f"What the program does at {watcher.between.ended_at} between its steps took more than "
            f"{format_seconds(ENDED_AFTER * MOST_SECONDS)} here and was ended: the run has what was seen of it, and "
            "nothing behind it, such as a checkpoint."
        )
    if run.unreached:
        texts.append(
            f"More training follows {watcher.step_line} and was not reached ({run.unreached[:100]}): the forecast is "
            "without it. --steps runs so many steps as they are."
        )
    return texts


def _grows(rest: LoopRestTime, watcher: StepWatcher) -> bool:
    return rest.is_branch and rest.line in watcher.between.grown.by_line


def _of_growth(rest: LoopRestTime, before: int, after: int) -> str:
    """That a branch changes what is trained, of which the forecast has but its first time."""
    return (
        f"The branch at {rest.line} changes what is trained, {rest.times:,} times in the run: {before:,} parameters "
        f"before it, {after:,} behind it the first time, where what nobody can know is as assumed. The step is that "
        "before; --steps N runs N steps as they are, up to the last of these turns."
    )


def _several(earlier: Sequence[EarlierLoop]) -> str:
    """How often a program trains, and in how many stages, where the turns of one loop differ."""
    stages, loops = sum(bool(each.until) for each in earlier), sum(not each.until for each in earlier)
    if not stages:
        return f"The program trains {loops + 1} times"
    if not loops:
        return f"The program trains in {stages + 1} stages"
    return f"The program trains {loops + 1} times, one of them in {stages + 1} stages"


def _memory_of_end(run: ProgramRun) -> str:
    """What is said where memory is at its highest behind the last loop."""
    end, trace = run.watcher.between.end_of_run, run.session.recorder.trace
    last = next((rest for rest in run.watcher.between.rests if rest.is_last), None)
    if last is None:
        return ""
    if run.out_of_memory is not None:
        return f"Memory runs out behind the last loop, at {end.line}, when all steps are made: save before it."
    allocated, peaks = 0, [0, 0]
    for place, (kind, index) in enumerate(trace.events):
        if kind in (ALLOCATE, FREE):
            allocated += trace.storages[index].bytes if kind == ALLOCATE else -trace.storages[index].bytes
            is_behind = place >= last.begin
            peaks[is_behind] = max(peaks[is_behind], allocated)
    excess = peaks[True] - peaks[False]
    if excess < max(LEAST_TOLD_EXCESS * peaks[False], LEAST_TOLD_BYTES):
        return ""
    return f"Memory peaks behind the last loop, at {end.line}, {format_bytes(excess)} above what is needed before."


def _when(rest: LoopRestTime) -> str:
    if rest.is_last:
        return f"Behind its last loop, at {rest.line},"
    where = (
        f"Where the branch at {rest.line} is due" if rest.is_branch else f"After each pass of the loop at {rest.line}"
    )
    return f"{where} ({rest.times:,} in the run)"


def _purpose(rest: LoopRestTime) -> str:
    return "another network's updates, evaluation and the like" if rest.training_seconds else "evaluation and the like"


def whole_run(
    steps: Sequence[StepTime], length: ProgramLength | None, watcher: StepWatcher, trace: Trace, device: Device,
    *, costs: PriorCosts, step: Range, breakdown: MemoryBreakdown, saved_bytes: int, compile_seconds: float,
    price_per_hour: float | None, earlier: Sequence[EarlierLoop] = (), rests: Sequence[LoopRestTime] = (),
    before_seconds: float = 0.0,
) -> RunForecast:  # fmt: skip
    """Time and cost of `earlier` loops and the one that `length` describes, at the warm `steps`; else of those seen.

    `rests` is what follows the passes of that loop; `step` is the range of a step, in whose shares the run may miss.
    `before_seconds` is before all steps; without any it is all that the program does.
    """
    last = len(steps) if length is None else length.steps
    total = last + sum(loop.steps for loop in earlier)
    training = last * mean_seconds(steps) + sum(loop.steps * loop.step_seconds for loop in earlier)
    rests = [*rests, *(rest for loop in earlier for rest in loop.rests)]
    training += sum(rest.times * rest.training_seconds for rest in rests)
    before = sum(loop.checkpoints for loop in earlier)  # of other trainers
    checkpoints = _checkpoints(rests, length, saved_bytes, trace, breakdown, watcher.loop, before)
    phases = RunPhases(
        startup_seconds=before_seconds if steps else 0.0,
        compile_seconds=compile_seconds,
        training_seconds=training,
        evaluation_seconds=_rests_seconds(rests)
        + (0.0 if steps else before_seconds)
        + sum(loop.evaluation_seconds for loop in earlier)
        + (0.0 if length is None else _evaluation_seconds(steps, length, watcher.loop, trace, costs)),
        checkpoint_seconds=0.0 if length is None else checkpoints.all_bytes / STATED_DISK_BYTES_PER_SECOND,
    )
    seconds = sum(phases.model_dump().values())
    price = device.price_per_hour if price_per_hour is None else price_per_hour
    return RunForecast(
        steps_per_epoch=(length and length.steps_per_epoch) or total,
        total_steps=total,
        checkpoints_written=checkpoints.count,
        checkpoint_bytes=checkpoints.most_bytes,
        seconds=in_shares_of(step, seconds),
        phases=phases,
        cost=None if price is None else price * seconds / HOUR * trace.world_size * trace.cards,
    )


@dataclass(frozen=True)
class _Checkpoints:
    """What a run writes of them."""

    count: int
    most_bytes: int
    """Of one."""
    all_bytes: int


def _checkpoints(
    rests: Sequence[LoopRestTime], length: ProgramLength | None, saved_bytes: int, trace: Trace,
    breakdown: MemoryBreakdown, loop: TrainingLoop, before: int = 0,
) -> _Checkpoints:  # fmt: skip
    """Small files beside the largest of a program's own are none; nor are small ones that its steps write.

    `before` are those of other trainers, taken to be as large as the last one's.
    """
    by_trainer = before + (0 if length is None else length.checkpoints)
    largest = max((rest.saved_bytes for rest in rests), default=0)
    if not largest:
        whole = _checkpoint_bytes(trace, breakdown)
        later = loop.spans[max(1, loop.warm_from) :]  # what a turn saves is behind its update, so in the next step
        in_steps = [each.saved_bytes for each in later if each.saved_bytes >= max(1, CHECKPOINT_SHARE * whole)]
        of_steps = round(len(in_steps) / max(1, len(later)) * (0 if length is None else length.steps))
        if by_trainer or not of_steps:  # a trainer knows its own; steps of a few epochs may each end one
            count = max(by_trainer, int(saved_bytes > 0))
            size = (saved_bytes or whole) if count else 0
        else:
            count, size = of_steps, max(in_steps)
        return _Checkpoints(count, size, count * size)
    count = sum(rest.times for rest in rests if rest.saved_bytes >= CHECKPOINT_SHARE * largest)
    all_bytes = sum(rest.times * rest.saved_bytes for rest in rests)
    if not by_trainer or not all(rest.is_last for rest in rests if rest.saved_bytes):
        return _Checkpoints(count, largest, all_bytes)
    of_trainer = _checkpoint_bytes(trace, breakdown)  # what a trainer writes is not in its rests
    return _Checkpoints(count + by_trainer, max(largest, of_trainer), all_bytes + by_trainer * of_trainer)


def mean_seconds(steps: Sequence[StepTime]) -> float:
    """Seconds of a warm step; 0 where none was seen."""
    return statistics.fmean(step.seconds for step in steps) if steps else 0.0


def _evaluation_seconds(
    steps: Sequence[StepTime], length: ProgramLength, loop: TrainingLoop, trace: Trace, costs: PriorCosts
) -> float:
    """Seconds of all evaluated batches: each a forward pass of its samples, which the host has to launch."""
    if not steps or not length.evaluation_batches or not loop.samples_per_step:
        return 0.0
    last = loop.spans[-1]
    step, passes = trace.part(last.begin, last.end), max(1, len(last.backward_lines))
    ops = (step.ops[index] for kind, index in step.events if kind == OP)
    calls = Counter(op.call for op in ops if op.phase is Phase.FORWARD)
    launches = sum(n * costs.host_seconds(step.calls[i]) * step.calls[i].times for i, n in calls.items()) / passes
    size = length.evaluation_batch_size or loop.samples_per_step / passes
    busy = steps[-1].phases.forward_seconds * size / loop.samples_per_step
    return length.evaluation_batches * max(busy, launches)


def _checkpoint_bytes(trace: Trace, breakdown: MemoryBreakdown) -> int:
    """Bytes of the trained parameters and the optimizer's state."""
    share = trace.trainable_parameters / max(1, trace.total_parameters)
    return int(share * breakdown.parameter_bytes + breakdown.optimizer_state_bytes)


def not_modelled(run: ProgramRun, costs: PriorCosts, length: ProgramLength | None) -> list[str]:
    """What of the program's time no figure has; `length` is what the program says or its user."""
    listed = ["time that the GPU waits for data"]
    between = run.watcher.between
    rests = [rest for rest in between.rests if not rest.is_last]
    if length is None or not (length.evaluation_batches or rests or between.branches.runs):
        listed.append("evaluation and generation between steps")
    if length is not None and length.generates:
        listed.append(
            "generation in the Trainer's evaluations (predict_with_generate): they have their batches' loss only"
        )
    if between.end_of_run.ended_by:
        listed.append(f"the rest of what follows {between.end_of_run.line}: it {between.end_of_run.ended_by}")
    if not costs.knows_ranks:
        listed.append("time of communication between ranks: the links of such a GPU are not known")
    step = last_step(run.session.recorder.trace, run.watcher)
    if any(row.name in ("send", "recv_") for row in count_collectives(step)):
        listed.append(WAITS_FOR_STAGES)
    return listed
