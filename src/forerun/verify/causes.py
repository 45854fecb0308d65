"""Why a run took longer, or less long, than forecast: causes with their seconds, from recorded evidence.

Each cause says what it accounts for, by simple arithmetic on what was measured; they may overlap and need not add up to
the miss. What nothing recorded explains is said too.
"""

from forerun.records import Cause, Forecast, Measurement, RunEvidence
from forerun.units import format_percent, format_seconds

WORTH_SAYING = 0.02
"""Of the measured whole."""
FULL_CLOCK = 0.97
"""Of the highest clock; below, the GPU was slowed."""


def causes(forecast: Forecast, measurement: Measurement) -> list[Cause]:
    """Causes of the difference in the whole run's time, the largest first; empty when it is next to none."""
    miss = measurement.run.seconds - forecast.run.seconds.expected
    found = [*_of_steps(forecast, measurement), *_of_phases(forecast, measurement)]
    large = [c for c in found if abs(c.seconds) > WORTH_SAYING * measurement.run.seconds and c.seconds * miss > 0]
    return sorted(large, key=lambda cause: -abs(cause.seconds))


def _of_steps(forecast: Forecast, measurement: Measurement) -> list[Cause]:
    """Causes within training, scaled from a step to all of them."""
    steps, evidence = measurement.run.total_steps, measurement.evidence
    found = []
    planned, seen = forecast.detail.padded_tokens_per_step, evidence.padded_tokens_per_step
    training = forecast.run.phases.training_seconds
    if planned and seen:
        longer = seen / planned - 1
        said = f"batches had {seen:,.0f} padded tokens per step, planned {planned:,.0f}"
        found.append(Cause(name="sequence lengths", seconds=training * longer, said=said))
    waited = measurement.step.phases.data_seconds - forecast.step.phases.data_seconds
    said = f"each step waited {format_seconds(abs(waited))} {'more' if waited > 0 else 'less'} for its batches"
    found.append(Cause(name="data", seconds=steps * waited, said=said))
    if evidence.out_of_memory_steps:
        said = f"{evidence.out_of_memory_steps} steps ran out of memory and were run again in smaller pieces"
        found.append(Cause(name="out of memory", seconds=evidence.out_of_memory_seconds, said=said))
    return [*found, *_of_machine(evidence, measurement.run.phases.training_seconds)]


def _of_machine(evidence: RunEvidence, training: float) -> list[Cause]:
    found = []
    for name, share, who in (
        ("shared machine", evidence.other_processes_share, "other processes used"),
        ("shared processor", evidence.stolen_share, "the hypervisor gave others"),
    ):
        if share:
            said = f"{who} {format_percent(share)} of the processor time"
            found.append(Cause(name=name, seconds=share * training, said=said))
    if evidence.clock_share is not None and evidence.clock_share < FULL_CLOCK:
        why = " (power or heat)" if (evidence.throttled_share or 0) > 1 / 2 else ""
        said = f"the GPU ran at {format_percent(evidence.clock_share)} of its highest clock{why}"
        found.append(Cause(name="clock", seconds=(1 - evidence.clock_share) * training, said=said))
    return found


def _of_phases(forecast: Forecast, measurement: Measurement) -> list[Cause]:
    """Start-up, compiling, evaluation and checkpoints, which have no causes below them."""
    found = []
    for name in ("startup", "compile", "evaluation", "checkpoint"):
        expected, took = (getattr(record.run.phases, f"{name}_seconds") for record in (forecast, measurement))
        said = f"{name} took {format_seconds(took)}, forecast {format_seconds(expected)}"
        if name == "checkpoint" and took > 0:
            written = measurement.run.checkpoints_written * measurement.run.checkpoint_bytes
            said += f" ({written / took / 1e6:,.0f} MB/s)"
        if name == "compile" and measurement.evidence.compiled_graphs:
            said += f" ({measurement.evidence.compiled_graphs} graphs)"
        found.append(Cause(name=name, seconds=took - expected, said=said))
    return found
