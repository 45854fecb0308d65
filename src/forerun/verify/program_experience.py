"""What the ledger knows of a program (`forerun exec`): its own steps as users measured them, and runs on its device."""

from typing import TYPE_CHECKING

from forerun.forecasting.correcting import corrected
from forerun.forecasting.program import ProgramForecast
from forerun.forecasting.ranges import OTHER_GPU
from forerun.verify.recalibrate import recalibrate

if TYPE_CHECKING:
    from forerun.ledger.store import Ledger

EVIDENCE = OTHER_GPU
"""Ranges before any run; only those of terms without a correction use it."""


def with_program_experience(forecast: ProgramForecast, ledger: "Ledger") -> ProgramForecast:
    """A program's forecast with what users measured of its steps, and of other runs on its device, in the ledger.

    Step, training and cost change with the step; memory does not.
    """
    target = {"command": forecast.script.command}
    correction = recalibrate(target, forecast.settings_hash, ledger.outcomes(forecast.gpu))
    term = correction.terms.get("step")
    if term is None or forecast.step.seconds.expected <= forecast.step.phases.data_seconds:
        return forecast
    return corrected(forecast, correction.model_copy(update={"terms": {"step": term}}), EVIDENCE)
