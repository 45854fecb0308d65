"""The whole run of a program: its steps, and what its trainer would do between them.

The program was stopped after few steps, so evaluations and checkpoints that it says it will make are priced by what was
seen: an evaluated batch takes a training step's forward pass, a checkpoint writes the trained parameters and the
optimizer's state.
"""

import statistics
from collections.abc import Sequence

from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import StepTime, replay_clock
from forerun.forecasting.ranges import PROGRAM, group_of, shares, spread
from forerun.forecasting.step_model import STATED_DISK_BYTES_PER_SECOND
from forerun.hardware.catalogue import Device
from forerun.records import MemoryBreakdown, Record, RunForecast, RunPhases
from forerun.trace import Trace
from forerun.units import format_seconds
from forerun.virtual.cuda.length import ProgramLength
from forerun.virtual.cuda.steps import StepWatcher

HOUR = 3600.0


class EarlierLoop(Record):
    """A training loop of the program before the one that the forecast's step is of."""

    line: str
    """File and line that stepped its optimizer."""
    steps_seen: int
    steps: int
    """Of the whole loop; those seen where nobody says how many."""
    is_length_known: bool
    step_seconds: float


def earlier_loops(trace: Trace, watcher: StepWatcher, costs: PriorCosts) -> list[EarlierLoop]:
    """The training loops before the last one, at the mean of their warm steps."""
    return [
        EarlierLoop(
            line=loop.line,
            steps_seen=len(loop.spans),
            steps=len(loop.spans) if loop.length is None else loop.length.steps,
            is_length_known=loop.length is not None,
            step_seconds=mean_seconds(
                [replay_clock(trace.part(span.begin, span.end), costs) for span in loop.spans[loop.warm_from :]]
            ),
        )
        for loop in watcher.earlier
    ]


def loop_warnings(earlier: Sequence[EarlierLoop], watcher: StepWatcher, unreached: str) -> list[str]:
    """What the forecast is of where a program has several training loops; `unreached`: why the next did not begin."""
    texts = []
    if earlier:
        rows = [f"{each.line} makes {each.steps:,} steps of {format_seconds(each.step_seconds)}" for each in earlier]
        texts.append(
            f"The program trains {len(earlier) + 1} times: {', '.join(rows)}, then {watcher.step_line}. Memory is the "
            "highest of all, the step is the last one's, the run is all of them."
        )
    unknown = [each.line for each in earlier if not each.is_length_known]
    if unknown:
        texts.append(f"How often {', '.join(unknown)} is reached is not known: the run has the steps seen there.")
    if unreached:
        texts.append(
            f"More training follows {watcher.step_line} and was not reached ({unreached[:100]}): the forecast is "
            "without it. --steps runs so many steps as they are."
        )
    return texts


def whole_run(
    steps: Sequence[StepTime], length: ProgramLength | None, watcher: StepWatcher, trace: Trace, device: Device,
    *, costs: PriorCosts, breakdown: MemoryBreakdown, saved_bytes: int, compile_seconds: float,
    price_per_hour: float | None, earlier: Sequence[EarlierLoop] = (),
) -> RunForecast:  # fmt: skip
    """Time and cost of `earlier` loops and the one that `length` describes, at the warm `steps`; else of those seen."""
    last = len(steps) if length is None else length.steps
    total = last + sum(loop.steps for loop in earlier)
    training = last * mean_seconds(steps) + sum(loop.steps * loop.step_seconds for loop in earlier)
    checkpoints = int(saved_bytes > 0) if length is None else max(length.checkpoints, int(saved_bytes > 0))
    checkpoint_bytes = saved_bytes or (_checkpoint_bytes(trace, breakdown) if checkpoints else 0)
    phases = RunPhases(
        compile_seconds=compile_seconds,
        training_seconds=training,
        evaluation_seconds=0.0 if length is None else _evaluation_seconds(steps, length, watcher),
        checkpoint_seconds=0.0 if length is None else checkpoints * checkpoint_bytes / STATED_DISK_BYTES_PER_SECOND,
    )
    seconds = sum(phases.model_dump().values())
    price = device.price_per_hour if price_per_hour is None else price_per_hour
    return RunForecast(
        steps_per_epoch=last if length is None else length.steps_per_epoch or last,
        total_steps=total,
        checkpoints_written=checkpoints,
        checkpoint_bytes=checkpoint_bytes,
        seconds=spread(seconds, *shares(group_of(trace, costs, PROGRAM))),
        phases=phases,
        cost=None if price is None else price * seconds / HOUR * trace.world_size,
    )


def mean_seconds(steps: Sequence[StepTime]) -> float:
    """Seconds of a warm step; 0 where none was seen."""
    return statistics.fmean(step.seconds for step in steps) if steps else 0.0


def _evaluation_seconds(steps: Sequence[StepTime], length: ProgramLength, watcher: StepWatcher) -> float:
    """Seconds of all evaluated batches: the forward pass of a step's samples, with its part of the launches."""
    if not steps or not length.evaluation_batches or not watcher.samples_per_step:
        return 0.0
    phases = steps[-1].phases
    busy = phases.forward_seconds + phases.backward_seconds + phases.optimizer_seconds
    forward = phases.forward_seconds * (1 + phases.host_seconds / busy) if busy else 0.0
    passes = max(1, len(watcher.spans[-1].backward_lines))
    size = length.evaluation_batch_size or watcher.samples_per_step / passes
    return length.evaluation_batches * size * forward / watcher.samples_per_step


def _checkpoint_bytes(trace: Trace, breakdown: MemoryBreakdown) -> int:
    """Bytes of the trained parameters and the optimizer's state."""
    share = trace.trainable_parameters / max(1, trace.total_parameters)
    return int(share * breakdown.parameter_bytes + breakdown.optimizer_state_bytes)
