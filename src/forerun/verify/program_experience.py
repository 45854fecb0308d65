"""What the ledger knows of a program (`forerun exec`): its own steps as users measured them, and runs on its device."""

from typing import TYPE_CHECKING

from forerun.forecasting.program import ProgramForecast
from forerun.forecasting.ranges import OTHER_GPU, run_range, shares, spread
from forerun.records import StepPhases
from forerun.units import format_percent
from forerun.verify.recalibrate import LEAST_SECONDS, recalibrate

if TYPE_CHECKING:
    from forerun.ledger.store import Ledger

EVIDENCE = OTHER_GPU
"""Ranges before any run; only those of terms without a correction use it."""


def with_program_experience(forecast: ProgramForecast, ledger: "Ledger") -> ProgramForecast:
    """A program's forecast with what users measured of it, and of other runs on its device, in the ledger.

    Step, training and cost change with the step; memory does not.
    """
    target = {"command": forecast.script.command}
    correction = recalibrate(target, forecast.settings_hash, ledger.outcomes(forecast.gpu))
    step, run = forecast.step, forecast.run
    seconds = step.seconds.expected - step.phases.data_seconds
    if "step" not in correction.terms or seconds <= 0:
        return forecast
    factor = correction.factor("step", seconds)
    phases = {n: v * (1.0 if n == "data_seconds" else factor) for n, v in step.phases.model_dump().items()}
    ratio = sum(phases.values()) / step.seconds.expected
    training = run.phases.training_seconds * ratio
    whole = run.phases.model_copy(update={"training_seconds": training})
    longer = sum(whole.model_dump().values()) / max(sum(run.phases.model_dump().values()), LEAST_SECONDS)
    new_step = {
        "seconds": spread(step.seconds.expected * ratio, *shares(EVIDENCE, correction)),
        "phases": StepPhases(**phases), "mfu": step.mfu / ratio,
        "tokens_per_second": step.tokens_per_second / ratio, "samples_per_second": step.samples_per_second / ratio,
    }  # fmt: skip
    new_run = {
        "phases": whole, "seconds": run_range(whole, EVIDENCE, correction),
        "cost": None if run.cost is None else run.cost * longer,
    }  # fmt: skip
    warning = f"Corrected by {correction.said}: steps {format_percent(factor - 1, signed=True)}."
    detail = forecast.detail.model_copy(update={"corrected_by": {"step": factor}})
    return forecast.model_copy(update={
        "step": step.model_copy(update=new_step), "run": run.model_copy(update=new_run), "detail": detail,
        "warnings": [*forecast.warnings, warning],
    })  # fmt: skip
