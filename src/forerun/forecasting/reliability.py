"""What do failures make of a run? Its forecast + `reliability` of the settings → expected time, goodput, cost, energy.

The job stops when one of its GPUs fails or one of its machines is taken away, and goes on from its last durable
checkpoint (`renewal.py`). Work is training and scoring, spread evenly over the steps. Bytes, seconds, dollars, joules.

Not covered: spare machines that run dry, runs that shrink to the machines that are left, cold machines at the start.
"""

import math
from dataclasses import dataclass, replace

from forerun.forecasting.renewal import InterruptedRun, best_every_steps, young_interval
from forerun.hardware.catalogue import Device
from forerun.hardware.failures import failures_of
from forerun.records import RunForecast, RunReliability
from forerun.settings.reliability import ReliabilitySettings
from forerun.settings.schema import Settings
from forerun.units import HOUR, MINUTE, format_percent, format_seconds

WORTH_SAYING = 0.005
"""Share of the run that other checkpoints must save to be named in a warning."""


@dataclass(frozen=True)
class JobInterruptions:
    """How often a job is interrupted, by what."""

    failures_per_second: float
    taken_per_second: float
    """Times that one of its machines is taken away."""
    source: str

    @property
    def mean_seconds(self) -> float:
        """Between two interruptions of either kind; infinite for none."""
        rate = self.failures_per_second + self.taken_per_second
        return 1 / rate if rate else math.inf


def interruptions_of(settings: Settings) -> JobInterruptions:
    """Rates of the whole job.

    Raises:
        InvalidSettings: `reliability.failures` names no published cluster.
    """
    hours, source = failures_of(settings.reliability.failures)
    gpus = settings.parallel.world_size
    machines = math.ceil(gpus / settings.cluster.gpus_per_node)
    lost_machines = machines * settings.reliability.spot.interruptions_per_hour
    if lost_machines:
        source += f"; {settings.reliability.spot.interruptions_per_hour:g} interruptions of a machine an hour, as set"
    return JobInterruptions(gpus / (hours * HOUR), lost_machines / HOUR, source)


def with_reliability(
    settings: Settings, device: Device, run: RunForecast, write_seconds: float, price_per_hour: float | None
) -> RunForecast:
    """`run` with what interruptions make of it; as it is where the settings name none.

    `write_seconds` is what storage needs for one checkpoint, `price_per_hour` that of one device on demand.

    Raises:
        InvalidSettings: `reliability.failures` names no published cluster.
    """
    options = settings.reliability
    if options == ReliabilitySettings():
        return run
    rates = interruptions_of(settings)
    interrupted = _interrupted(settings, device, run, write_seconds, rates.mean_seconds)
    step_seconds = interrupted.work_seconds / run.total_steps
    every = best_every_steps(interrupted, step_seconds, run.total_steps)
    best = replace(interrupted, interval_seconds=every * step_seconds)
    price = None if price_per_hour is None else price_per_hour / HOUR * settings.parallel.world_size
    watts = None if device.board_watts is None else device.board_watts * settings.parallel.world_size
    reserved = replace(interrupted, mean_seconds=replace(rates, taken_per_second=0.0).mean_seconds)
    # Nothing runs, nothing can fail and nothing is paid while there are no machines.
    stretch = 1 + rates.taken_per_second * options.spot.wait_seconds
    seconds, best_seconds = interrupted.expected_seconds, best.expected_seconds
    count = seconds / rates.mean_seconds if math.isfinite(seconds) else math.inf
    again = seconds - interrupted.undisturbed_seconds - count * interrupted.restart_seconds
    reliability = RunReliability(
        source=rates.source,
        seconds_between_interruptions=_if_finite(rates.mean_seconds),
        interruptions=_if_finite(count),
        restart_seconds=interrupted.restart_seconds,
        checkpoint_wait_seconds=interrupted.wait_seconds,
        checkpoint_write_seconds=interrupted.wait_seconds + interrupted.lag_seconds,
        seconds=_if_finite(seconds * stretch),
        goodput=interrupted.work_seconds / (seconds * stretch),
        repeated_seconds=_if_finite(max(0.0, again)) if math.isfinite(seconds) else None,
        every_steps=settings.checkpoints.every_steps,
        best_every_steps=every,
        best_seconds=_if_finite(best_seconds * stretch),
        best_goodput=interrupted.work_seconds / (best_seconds * stretch),
        cost=_times(price, seconds * (1 - options.spot.discount)),
        on_demand_cost=_times(price, reserved.expected_seconds),
        energy_joules=_times(watts, seconds),
    )
    return run.model_copy(update={"reliability": reliability})


def _if_finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _times(rate: float | None, seconds: float) -> float | None:
    return None if rate is None else _if_finite(rate * seconds)


def _interrupted(
    settings: Settings, device: Device, run: RunForecast, write_seconds: float, mean_seconds: float
) -> InterruptedRun:
    options, phases = settings.reliability, run.phases
    work = phases.training_seconds + phases.evaluation_seconds
    startup = phases.startup_seconds + phases.compile_seconds
    if options.checkpoint_write_seconds is not None:
        write_seconds = options.checkpoint_write_seconds
    wait = _standing_still(settings, device, run.checkpoint_bytes, write_seconds)
    if options.checkpoint_wait_seconds is not None:
        wait = options.checkpoint_wait_seconds
    restart = startup + write_seconds if options.restart_seconds is None else options.restart_seconds
    return InterruptedRun(
        work_seconds=work,
        interval_seconds=settings.checkpoints.every_steps * work / run.total_steps,
        mean_seconds=mean_seconds,
        wait_seconds=wait,
        lag_seconds=max(0.0, write_seconds - wait),
        startup_seconds=startup,
        restart_seconds=restart,
    )


def _standing_still(settings: Settings, device: Device, checkpoint_bytes: int, write_seconds: float) -> float:
    """Seconds that training waits for one checkpoint: written in its way, or copied to the host over its link."""
    checkpoints, in_parts = settings.checkpoints, settings.checkpoints.sharded and settings.parallel.kind == "fsdp"
    in_background = checkpoints.background == "always" or (checkpoints.background == "auto" and device.kind == "cuda")
    if not in_background or in_parts or device.host_link_bytes_per_second is None:
        return write_seconds
    return min(write_seconds, checkpoint_bytes / device.host_link_bytes_per_second)


def reliability_warnings(settings: Settings, device: Device, run: RunForecast) -> list[str]:
    """What a reader must know of the run's expected time, or could gain."""
    reliability, options = run.reliability, settings.reliability
    if reliability is None:
        return []
    warnings = []
    seconds, best = reliability.seconds, reliability.best_seconds
    between = reliability.seconds_between_interruptions
    if seconds is None:
        warnings.append("The run hardly ever gets from one checkpoint to the next: save more often, or use less GPUs.")
    if best is not None and (seconds is None or best < seconds * (1 - WORTH_SAYING)):
        shorter = "end" if seconds is None else f"be {format_percent(1 - best / seconds)} shorter"
        young = young_interval(reliability.checkpoint_wait_seconds, between or 0.0)
        warnings.append(
            f"Checkpoints every {reliability.best_every_steps} steps instead of {reliability.every_steps} would let "
            f"the run {shorter} (Young's interval: {format_seconds(young)}): "
            f"--set checkpoints.every_steps={reliability.best_every_steps}."
        )
    if options.restart_seconds is None and between is not None:
        minute_cost = (reliability.interruptions or 0.0) * MINUTE  # to first order
        warnings.append(
            f"A restart is taken as {format_seconds(reliability.restart_seconds)}: start-up and reading a checkpoint, "
            f"as if the failure were noticed at once and a spare stood by. Each further minute of "
            f"reliability.restart_seconds adds {format_seconds(minute_cost)} to the run."
        )
    if device.board_watts is None:
        warnings.append(f"Energy is unknown: no board power of {device.name} is in the catalogue.")
    return warnings
