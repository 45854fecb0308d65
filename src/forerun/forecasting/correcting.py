"""A program's forecast, corrected by what past runs of its like took."""

from forerun.experience import Correction
from forerun.forecasting.made_with import made_with
from forerun.forecasting.program import ProgramForecast
from forerun.forecasting.ranges import run_range, shares, spread
from forerun.records import RunPhases
from forerun.units import format_percent

TERMS = ("compile", "evaluation", "checkpoint")
"""Phases of a run that past runs correct each by itself."""


def corrected(forecast: ProgramForecast, correction: Correction, group: str) -> ProgramForecast:
    """The forecast with each term of its time multiplied by what past runs say; `group` is that of its range."""
    step, run = forecast.step, forecast.run
    factors = {name: correction.factor(name, getattr(run.phases, f"{name}_seconds")) for name in TERMS}
    factors["step"] = correction.factor("step", step.seconds.expected)
    factor = factors["step"]
    phases = {name: value * factor for name, value in step.phases.model_dump().items()}
    step = step.model_copy(update={
        "seconds": spread(step.seconds.expected * factor, *shares(group, correction)),
        "phases": step.phases.model_copy(update=phases), "mfu": step.mfu / factor,
        "tokens_per_second": step.tokens_per_second / factor, "samples_per_second": step.samples_per_second / factor,
    })  # fmt: skip
    by_phase = {f"{name}_seconds": getattr(run.phases, f"{name}_seconds") * factors[name] for name in TERMS}
    whole = RunPhases(training_seconds=run.phases.training_seconds * factor, **by_phase)
    seconds = run_range(whole, group, correction)
    share = seconds.expected / run.seconds.expected if run.seconds.expected else 1.0
    run = run.model_copy(
        update={"phases": whole, "seconds": seconds, "cost": None if run.cost is None else run.cost * share}
    )
    warnings = list(forecast.warnings)
    if correction.terms:
        warnings.append(f"Corrected by {correction.said}: steps {format_percent(factor - 1, signed=True)}.")
    detail = forecast.detail.model_copy(update={"versions": made_with(), "corrected_by": factors})
    return forecast.model_copy(update={"step": step, "run": run, "warnings": warnings, "detail": detail})
