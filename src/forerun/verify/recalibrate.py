"""What past runs teach the next forecast: a `Correction` per term, from forecast and measurement of finished runs.

Runs of the same step (or, for what is not of a step, of the same settings) tell the time itself; others tell the ratio
of measured to forecast, and count by how like they are. What other code forecast, or other libraries ran, counts less.
Logarithms are taken as normal: precisions add, means weigh by precision; before any run the ratio is 1, give or take
what forecasts of such runs have missed by. What others' load can explain of a run that was slower is taken off, and the
less is left, the less the run says (with one beside 77 % in the ledger a forecast was 28 % too long; docs/log.md,
2026-11-23). A forecast that missed the very step by far may miss by more than such forecasts do.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from forerun.experience import Correction, CorrectionTerm, StepObservation
from forerun.forecasting.made_with import made_with
from forerun.forecasting.ranges import TERM_SPREAD
from forerun.forecasting.request import ForecastRequest
from forerun.hardware.detect import read_threads
from forerun.records import Forecast, Measurement
from forerun.verify.contention import slowdown

if TYPE_CHECKING:
    from forerun.ledger.store import Ledger, OutcomeRow

PRIOR_SPREAD = {"step": 0.12, **TERM_SPREAD}
"""Standard deviation of the logarithm before any run: of steps from this project's CPU (docs/log.md), of the others
stated."""
RUN_SPREAD = {"step": 0.08, "data": 0.2, "evaluation": 0.1, "checkpoint": 0.2, "startup": 0.15, "compile": 0.2}
"""Standard deviation of the logarithm from one run to the next of the same settings; of steps on a machine whose
processors others share."""
STRAY = 3.0
"""Multiple of the run spread: among three or more runs alike, none counts as farther from their median. A forecast
made while others took the processors was 16 times too long, and made the next three 24 to 29 % short (docs/log.md,
2026-11-22)."""
LEAST_SECONDS = 1e-4
"""Seconds below which a term is noise."""
LIKENESS = (
    (("model", "workload", "precision", "adapter", "quantization", "optimizer", "activation_checkpointing", "compile"),
     0.05, "the same model and method"),
    (("model", "workload"), 0.1, "the same model"),
    (("workload",), 0.2, "the same workload"),
)  # fmt: skip
"""Sections of the settings that agree, and the standard deviation that this adds to a run's."""
FARTHEST = 0.3
"""Standard deviation added when nothing agrees but the device."""
OTHER_VERSION = 0.15
"""Standard deviation added for runs that other code or other libraries forecast; stated. Such forecasts were 84 % off
beside others (docs/log.md, 2026-11-22)."""
OTHER_ANSWERS = 0.9
"""Standard deviation added for evaluations that generate, when another model answers. Forecasts take answers to be as
long as they may be; a model that ends them early says little of one that does not. Small decoders of `code-lora` took
0.23 to 0.70 of it, which alone made SmolLM2's forecast 0.59 of what it was to be (docs/log.md, 2026-11-22)."""
STEP_TERMS = ("step", "data")
"""Terms of one optimizer step: its length does not depend on how many there are."""
NOT_OF_A_STEP: dict[str, tuple[str, ...] | None] = {
    "name": None, "seed": None, "schedule": None, "checkpoints": None, "evaluation": None,
    "data": ("examples", "contamination"),
    "optimizer": ("learning_rate", "weight_decay"),
}  # fmt: skip
"""Settings that a step's time does not depend on: whole sections, or fields of one."""


@dataclass(frozen=True)
class _PastTerm:
    """One term of a past run, in seconds: forecast before any correction, measured; and how far it is from this one."""

    expected: float
    measured: float
    away: float
    """Standard deviation of the logarithm for unlikeness, added to the one from run to run."""
    is_same: bool


def with_experience(request: ForecastRequest, ledger: "Ledger") -> ForecastRequest:
    """The request with what the ledger knows of its device, and of runs like it there."""
    gpu = request.device.name
    correction = recalibrate(request.settings.model_dump(mode="json"), request.settings.hash, ledger.outcomes(gpu))
    return replace(request, calibration=ledger.calibration(gpu), correction=correction if correction.terms else None)


def recalibrate(target: Mapping[str, Any], digest: str, history: "Sequence[OutcomeRow]") -> Correction:
    """The correction of the next forecast for the settings `target`, of hash `digest`, from runs on its device."""
    terms, same = {}, 0
    for name in PRIOR_SPREAD:
        records = [_past_term(name, target, digest, outcome) for outcome in history]
        usable = [run for run in records if min(run.expected, run.measured) > LEAST_SECONDS]
        if usable:
            terms[name] = _term(name, usable)
        if name == "step":
            same = sum(run.is_same for run in usable)
    description = f"{len(history)} earlier runs on this device, {same} with the same step" if history else ""
    return Correction(terms=terms, said=description)


def _past_term(name: str, target: Mapping[str, Any], digest: str, outcome: "OutcomeRow") -> _PastTerm:
    expected, measured = _seconds(name, outcome.forecast, outcome.measurement)
    away = _distance(target, digest, outcome, of_a_step=name in STEP_TERMS)
    version = 0.0 if outcome.forecast.detail.versions == made_with() else OTHER_VERSION
    answers = OTHER_ANSWERS if name == "evaluation" and _answers_differ(target, outcome.settings) else 0.0
    others = 0.0
    if isinstance(outcome.measurement, Measurement) and min(expected, measured) > LEAST_SECONDS:
        longer = math.log(slowdown(outcome.forecast, outcome.measurement))
        missed = max(0.0, math.log(measured / expected))
        measured /= math.exp(min(longer, missed))
        others = longer * min(1.0, longer / missed) if missed else longer
    is_same = away == 0 and _has_same_threads(outcome)
    threads = 0.0 if is_same or away else OTHER_VERSION
    return _PastTerm(expected, measured, math.hypot(away, version, answers, others, threads), is_same=is_same)


def _has_same_threads(outcome: "OutcomeRow") -> bool:
    """Whether the run's operators had as many threads as they would have now; on a GPU that is no matter."""
    if outcome.forecast.gpu != "cpu" or not isinstance(outcome.measurement, Measurement):
        return True
    return outcome.measurement.evidence.threads in (None, read_threads())


def _term(name: str, records: Sequence[_PastTerm]) -> CorrectionTerm:
    """The correction of one term: other runs count by their ratio, the same step by its measured seconds."""
    noise = RUN_SPREAD[name]
    ratio, ratio_precision = _mean([r for r in records if not r.is_same], lambda r: r.measured / r.expected, noise)
    alike = [r for r in records if r.is_same]
    same, same_precision = _mean(alike, lambda r: r.measured, noise)
    miss = _mean(alike, lambda r: r.measured / r.expected, noise)[0] / STRAY
    precision = 1 / (PRIOR_SPREAD[name] ** 2 + miss**2) + ratio_precision
    total_precision = precision + same_precision
    return CorrectionTerm(
        factor=math.exp(ratio * ratio_precision / precision),
        measured_seconds=math.exp(same) if same_precision else None,
        trust=same_precision / total_precision,
        spread=math.sqrt(1 / total_precision + noise**2),
        runs=len(records),
    )


def _mean(records: Sequence[_PastTerm], value: Callable[[_PastTerm], float], noise: float) -> tuple[float, float]:
    """Mean logarithm of a value of runs, and its precision: what those at one distance share does not average out."""
    by_distance: dict[float, list[float]] = {}
    for run in records:
        by_distance.setdefault(run.away, []).append(math.log(value(run)))
    weights = {away: 1 / (noise**2 / len(logarithms) + away**2) for away, logarithms in by_distance.items()}
    precision = sum(weights.values())
    weighted = sum(weights[away] * _clipped_mean(logarithms, noise) for away, logarithms in by_distance.items())
    return weighted / precision if precision else 0.0, precision


def _clipped_mean(logarithms: Sequence[float], noise: float) -> float:
    """Mean of logarithms, each clipped to `STRAY` times the noise from the median where there are three or more."""
    if len(logarithms) < 3:
        return statistics.fmean(logarithms)
    middle, reach = statistics.median(logarithms), STRAY * noise
    return statistics.fmean(min(max(value, middle - reach), middle + reach) for value in logarithms)


def _distance(target: Mapping[str, Any], digest: str, outcome: "OutcomeRow", *, of_a_step: bool) -> float:
    """Standard deviation to add for not being the same run, or not the same step."""
    if outcome.forecast.settings_hash == digest:
        return 0.0
    if of_a_step and _step_part(target) == _step_part(outcome.settings):
        return 0.0
    for sections, distance, _ in LIKENESS:
        if "workload" in target and all(target.get(name) == outcome.settings.get(name) for name in sections):
            return distance
    return FARTHEST


def _answers_differ(target: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether evaluation generates and the model that answers is another."""
    generates = any(each.get("evaluation", {}).get("new_tokens", 0) for each in (target, settings))
    return generates and target.get("model") != settings.get("model")


def _step_part(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the settings that a step's time depends on."""
    relevant = {}
    thaws = settings.get("schedule", {}).get("frozen_encoder_epochs", 0) > 0  # then the mean depends on the epochs
    for name, value in settings.items():
        if name not in NOT_OF_A_STEP or (thaws and name == "schedule"):
            relevant[name] = value
        elif (fields := NOT_OF_A_STEP[name]) is not None and isinstance(value, Mapping):
            relevant[name] = {key: inner for key, inner in value.items() if key not in fields}
    return relevant


def _seconds(term: str, forecast: Forecast, measurement: Measurement | StepObservation) -> tuple[float, float]:
    """Seconds of a term: forecast before any correction, and measured; zero where it was not measured."""
    if isinstance(measurement, StepObservation):
        if term != "step" or measurement.seconds is None:
            return 0.0, 0.0
        data = forecast.step.phases.data_seconds  # a log does not tell it apart
        expected = (forecast.step.seconds.expected - data) / forecast.detail.corrected_by.get(term, 1.0)
        return expected, measurement.seconds - data
    if term == "step":  # data apart: it has a term of its own
        expected = forecast.step.seconds.expected - forecast.step.phases.data_seconds
        measured = measurement.step.seconds - measurement.step.phases.data_seconds
    elif term == "data":
        expected, measured = forecast.step.phases.data_seconds, measurement.step.phases.data_seconds
    else:
        name = f"{term}_seconds"
        expected, measured = getattr(forecast.run.phases, name), getattr(measurement.run.phases, name)
    return expected / forecast.detail.corrected_by.get(term, 1.0), measured
