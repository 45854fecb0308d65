"""Why a run took longer, or less long, than forecast: causes with their seconds, from recorded evidence.

Each cause says what it accounts for, by simple arithmetic on what was measured; they may overlap and need not add up to
the miss. What nothing recorded explains is said too.
"""

from forerun.records import Cause, Forecast, Measurement, RunEvidence
from forerun.units import format_percent, format_seconds

WORTH_SAYING = 0.02
"""Share of the measured run below which a cause is left out."""
FULL_CLOCK = 0.97
"""Share of the highest clock below which the GPU counts as slowed."""


def causes(forecast: Forecast, measurement: Measurement) -> list[Cause]:
    """Causes of the difference in the whole run's time, the largest first; empty when it is next to none."""
    miss = measurement.run.seconds - forecast.run.seconds.expected
    candidates = [*_step_causes(forecast, measurement), *_phase_causes(forecast, measurement)]
    large = [c for c in candidates if abs(c.seconds) > WORTH_SAYING * measurement.run.seconds and c.seconds * miss > 0]
    return sorted(large, key=lambda cause: -abs(cause.seconds))


def _step_causes(forecast: Forecast, measurement: Measurement) -> list[Cause]:
    """Causes within training, scaled from a step to all of them."""
    steps, evidence = measurement.run.total_steps, measurement.evidence
    contributions = []
    planned_tokens, measured_tokens = forecast.detail.padded_tokens_per_step, evidence.padded_tokens_per_step
    training = forecast.run.phases.training_seconds
    if planned_tokens and measured_tokens:
        longer = measured_tokens / planned_tokens - 1
        description = f"batches had {measured_tokens:,.0f} padded tokens per step, planned {planned_tokens:,.0f}"
        contributions.append(Cause(name="sequence lengths", seconds=training * longer, said=description))
    extra_wait = measurement.step.phases.data_seconds - forecast.step.phases.data_seconds
    description = (
        f"each step waited {format_seconds(abs(extra_wait))} {'more' if extra_wait > 0 else 'less'} for its batches"
    )
    contributions.append(Cause(name="data", seconds=steps * extra_wait, said=description))
    if evidence.out_of_memory_steps:
        description = f"{evidence.out_of_memory_steps} steps ran out of memory and were run again in smaller pieces"
        contributions.append(Cause(name="out of memory", seconds=evidence.out_of_memory_seconds, said=description))
    return [*contributions, *_machine_causes(evidence, measurement.run.phases.training_seconds)]


def _machine_causes(evidence: RunEvidence, training: float) -> list[Cause]:
    contributions = []
    for name, share, who in (
        ("shared machine", evidence.other_processes_share, "other processes used"),
        ("shared processor", evidence.stolen_share, "the hypervisor gave others"),
    ):
        if share:
            description = f"{who} {format_percent(share)} of the processor time"
            contributions.append(Cause(name=name, seconds=share * training, said=description))
    if evidence.clock_share is not None and evidence.clock_share < FULL_CLOCK:
        why = " (power or heat)" if (evidence.throttled_share or 0) > 1 / 2 else ""
        description = f"the GPU ran at {format_percent(evidence.clock_share)} of its highest clock{why}"
        contributions.append(Cause(name="clock", seconds=(1 - evidence.clock_share) * training, said=description))
    return contributions


def _phase_causes(forecast: Forecast, measurement: Measurement) -> list[Cause]:
    """Causes outside training: start-up, compiling, evaluation and checkpoints, as wholes."""
    contributions = []
    for name in ("startup", "compile", "evaluation", "checkpoint"):
        expected, took = (getattr(record.run.phases, f"{name}_seconds") for record in (forecast, measurement))
        description = f"{name} took {format_seconds(took)}, forecast {format_seconds(expected)}"
        if name == "checkpoint" and took > 0:
            written_bytes = measurement.run.checkpoints_written * measurement.run.checkpoint_bytes
            description += f" ({written_bytes / took / 1e6:,.0f} MB/s)"
        if name == "compile" and measurement.evidence.compiled_graphs:
            description += f" ({measurement.evidence.compiled_graphs} graphs)"
        contributions.append(Cause(name=name, seconds=took - expected, said=description))
    return contributions
