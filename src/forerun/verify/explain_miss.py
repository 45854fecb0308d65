"""A user's measured step against its forecast: which term is off by most, and which causes would explain it.

Every cause is a forecast of its own: settings, card or library changed one at a time (`alternatives.py`) and what has
an amount (`miss_causes.py`). They are ranked by how near they come to *all* measured numbers at once.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from forerun.errors import ForerunError
from forerun.experience import StepObservation
from forerun.hardware.catalogue import Device
from forerun.records import Forecast, VerdictRow
from forerun.settings.schema import Settings
from forerun.verify.alternatives import Alternative, alternatives
from forerun.verify.compare import quantity_row
from forerun.verify.miss import MissCause, MissExplanation, MissTerm
from forerun.verify.miss_causes import (
    COMPLEXITY,
    PartialCause,
    StepPrediction,
    is_near,
    memory_causes,
    prediction_of,
    time_causes,
)

SHOWN = 6
"""Causes that are listed."""
SAME = 0.003
"""Share of time and memory below which an alternative is the step as it was forecast."""
NO_CHANGE = "as forecast"
FORECAST_AGAIN = Callable[[Alternative], Forecast]


def explain_miss(
    forecast: Forecast,
    observation: StepObservation,
    settings: Settings | None = None,
    device: Device | None = None,
    again: FORECAST_AGAIN | None = None,
    on_progress: Callable[[str], None] = lambda text: None,
) -> MissExplanation:
    """The explanation of one measured step; without settings and `again` only causes with an amount are tried."""
    base = prediction_of(forecast)
    predictions: list[tuple[Alternative, StepPrediction]] = [(Alternative(""), base)]
    if settings is not None and device is not None and again is not None:
        for alternative in alternatives(settings, device):
            on_progress(alternative.text)
            try:
                changed = prediction_of(again(alternative))
            except ForerunError:
                continue  # not for this model or device
            if not any(_is_same(earlier, changed) for _, earlier in predictions):
                predictions.append((alternative, changed))
    accumulation = 1 if settings is None else settings.batch.gradient_accumulation_steps
    ranked = _ranked(predictions, observation, accumulation)
    without = "other kernels, versions and settings: a document cannot be forecast again, settings can"
    return MissExplanation(
        settings_hash=forecast.settings_hash,
        gpu=forecast.gpu,
        observation=observation,
        rows=_rows(forecast, observation),
        as_forecast=is_near(base, "allocated", observation),
        worst_terms=_worst_terms(base, ranked[0][1], observation) if ranked[0][0].text != NO_CHANGE else [],
        causes=[cause for cause, _ in ranked[:SHOWN]],
        tried=len(predictions) - 1,
        not_tried="" if again is not None else without,
    )


def _is_same(one: StepPrediction, other: StepPrediction) -> bool:
    pairs = [(one.seconds, other.seconds), (one.bytes_of("allocated"), other.bytes_of("allocated"))]
    return all(abs(a - b) <= SAME * a for a, b in pairs)


def _ranked(
    predictions: Sequence[tuple[Alternative, StepPrediction]], observation: StepObservation, accumulation: int
) -> list[tuple[MissCause, StepPrediction]]:
    """Explanations, nearest first: each alternative alone, or with further causes where it needs them less than others.

    Of the step as it was forecast, which comes first in `predictions`, every combination.
    """
    explanations: list[tuple[MissCause, StepPrediction]] = []
    nearest_without = math.inf
    for alternative, prediction in predictions:
        pairs = itertools.product(
            time_causes(prediction, observation.seconds, accumulation), memory_causes(prediction, observation.memory)
        )
        own = [_explanation(alternative, time, memory, observation) for time, memory in pairs]
        if not alternative.text:
            nearest_without = min(cause.distance for cause, _ in own)
            explanations += own
            continue
        best = min(own, key=lambda each: each[0].distance)
        explanations.append(best if best[0].distance < nearest_without else own[0])
    return sorted(explanations, key=lambda each: each[0].distance)


def _explanation(
    alternative: Alternative, time: PartialCause, memory: PartialCause, observation: StepObservation
) -> tuple[MissCause, StepPrediction]:
    joint = StepPrediction(time.prediction.phases, memory.prediction.parts, time.prediction.spreads)
    own = COMPLEXITY if alternative.text else 0.0
    texts = [text for text in (alternative.text, time.text, memory.text) if text]
    counter = next((memory.reading if name == "peak" else name for name in observation.memory), "allocated")
    cause = MissCause(
        text="; ".join(texts) or NO_CHANGE,
        change=" ".join(alternative.overrides),
        step_seconds=joint.seconds,
        memory_bytes=joint.bytes_of(counter),
        distance=(time.distance + memory.distance + own) ** 0.5,
        is_near=is_near(joint, memory.reading, observation),
    )
    return cause, joint


def _rows(forecast: Forecast, observation: StepObservation) -> list[VerdictRow]:
    memory = forecast.memory
    fields = {
        "peak": ("peak_allocated_bytes", memory.peak_allocated_bytes),
        "allocated": ("peak_allocated_bytes", memory.peak_allocated_bytes),
        "reserved": ("peak_reserved_bytes", memory.peak_reserved_bytes),
        "device": ("device_bytes", memory.device_bytes),
    }
    rows = [quantity_row("step.seconds", "seconds", forecast.step.seconds, observation.seconds)]
    rows += [quantity_row(fields[n][0], "bytes", fields[n][1], size) for n, size in observation.memory.items()]
    return [row for row in rows if row is not None]


def _worst_terms(base: StepPrediction, nearest: StepPrediction, observation: StepObservation) -> list[MissTerm]:
    """The term of each measured kind that differs by most between the forecast and its nearest cause."""
    kinds: Sequence[tuple[bool, Mapping[str, float], Mapping[str, float]]] = (
        (observation.seconds is not None, base.phases, nearest.phases),
        (bool(observation.memory), base.parts, nearest.parts),
    )
    terms = []
    for is_measured, before, after in kinds:
        name = max(before, key=lambda each: abs(after[each] - before[each]))
        if is_measured and after[name] != before[name]:
            terms.append(MissTerm(field=name, forecast=before[name], nearest=after[name]))
    return terms
