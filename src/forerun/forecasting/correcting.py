"""A program's forecast, corrected by what past runs of its like took."""

from forerun.experience import Correction
from forerun.forecasting.made_with import made_with
from forerun.forecasting.program import ProgramForecast
from forerun.forecasting.ranges import run_range, shares_of, step_range
from forerun.units import format_percent

TERMS = ("compile", "evaluation", "checkpoint")
"""Phases of a run that past runs correct each by itself."""


def corrected(forecast: ProgramForecast, correction: Correction, group: str) -> ProgramForecast:
    """The forecast with each term of its time multiplied by what past runs say; `group` is that of its range.

    The time of a step's data has a term of its own, apart from the step's.
    """
    step, run = forecast.step, forecast.run
    data = step.phases.data_seconds
    factors = {name: correction.factor(name, getattr(run.phases, f"{name}_seconds")) for name in TERMS}
    factors["step"] = correction.factor("step", step.seconds.expected - data)
    factors["data"] = correction.factor("data", data)
    phases = {
        name: value * factors["data" if name == "data_seconds" else "step"]
        for name, value in step.phases.model_dump().items()
    }
    before = sum(step.phases.model_dump().values())
    ratio = sum(phases.values()) / before if before else factors["step"]
    step = step.model_copy(update={
        "seconds": step_range(step.seconds.expected * ratio, group, shares_of(step.seconds), correction),
        "phases": step.phases.model_copy(update=phases), "mfu": step.mfu / ratio,
        "tokens_per_second": step.tokens_per_second / ratio, "samples_per_second": step.samples_per_second / ratio,
    })  # fmt: skip
    by_phase = {f"{name}_seconds": getattr(run.phases, f"{name}_seconds") * factors[name] for name in TERMS}
    whole = run.phases.model_copy(update={"training_seconds": run.phases.training_seconds * ratio, **by_phase})
    seconds = run_range(whole, group, correction, step.seconds)
    share = seconds.expected / run.seconds.expected if run.seconds.expected else 1.0
    run = run.model_copy(
        update={"phases": whole, "seconds": seconds, "cost": None if run.cost is None else run.cost * share}
    )
    warnings = list(forecast.warnings)
    if correction.terms:
        change = format_percent(factors["step"] - 1, signed=True)
        warnings.append(f"Corrected by {correction.said}: steps {change}.")
    detail = forecast.detail.model_copy(update={"versions": made_with(), "corrected_by": factors})
    return forecast.model_copy(update={"step": step, "run": run, "warnings": warnings, "detail": detail})
