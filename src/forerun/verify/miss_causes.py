"""What a step would take and need if a forecast's circumstances were others, and how near that is to what was measured.

Distances are in standard deviations: the logarithm of measured over predicted, each by the spread that the forecast
has there, and what a cause itself is unlikely by. Each cause counts at least `COMPLEXITY`, so that a plain miss is not
explained by two of them where one does. Causes with an amount (a slowed clock, a wait for data, fragmentation) take the
amount that fits best; the farther from usual, the more it counts.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from forerun.experience import StepObservation
from forerun.forecasting.ranges import NINTH_DECILE
from forerun.records import Forecast, Range
from forerun.units import format_bytes, format_percent, format_seconds

COMPLEXITY = 2.0
"""Squared standard deviations that one cause counts, as in Akaike's criterion (1974): two for each parameter."""
MEMORY_SPREAD = {"allocated": 0.03, "reserved": 0.08}
"""Standard deviation of the logarithm of measured over forecast memory; about the 90 % errors of published steps
(`docs/accuracy.md`) by 1.28. That of the device comes with its range."""
LEAST_SPREAD = 0.02
"""Standard deviation below which no spread is believed."""
DEVICE_PHASES = ("forward_seconds", "backward_seconds", "optimizer_seconds")


@dataclass(frozen=True)
class StepPrediction:
    """A step as some circumstances would make it: seconds by phase, and bytes by part, outermost sums apart."""

    phases: Mapping[str, float]
    parts: Mapping[str, float]
    """Bytes at the peak of allocated memory, then `cache_bytes` (reserved beside them) and `outside_bytes` (of the
    device, beside the allocator)."""
    spreads: Mapping[str, float]
    """Standard deviation of the logarithm of `seconds`, `allocated`, `reserved`, `device`."""

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        return sum(self.phases.values())

    def bytes_of(self, reading: str) -> float:
        """Bytes that a counter shows: `allocated`, `reserved` or `device`."""
        left_out = {"allocated": ("cache_bytes", "outside_bytes"), "reserved": ("outside_bytes",)}.get(reading, ())
        return sum(size for name, size in self.parts.items() if name not in left_out)


def prediction_of(forecast: Forecast) -> StepPrediction:
    """What a forecast says of a step."""
    memory = forecast.memory
    parts = {name: float(size) for name, size in memory.breakdown.model_dump().items()}
    parts["cache_bytes"] = float(memory.peak_reserved_bytes - memory.peak_allocated_bytes)
    parts["outside_bytes"] = memory.device_bytes.expected - memory.peak_reserved_bytes
    return StepPrediction(
        forecast.step.phases.model_dump(),
        parts,
        {"seconds": _spread(forecast.step.seconds), "device": _spread(memory.device_bytes), **MEMORY_SPREAD},
    )


def _spread(band: Range) -> float:
    if band.optimistic <= 0:
        return LEAST_SPREAD
    return max(LEAST_SPREAD, math.log(band.conservative / band.optimistic) / (2 * NINTH_DECILE))


@dataclass(frozen=True)
class PartialCause:
    """A cause of one kind of number (time or memory) with the amount that fits best; `text` is empty for none."""

    text: str
    prediction: StepPrediction
    distance: float
    """Squared standard deviations: of the miss that it leaves, and of the cause itself."""
    reading: str = "allocated"
    """Which counter the measured memory is taken as."""


Apply = Callable[[StepPrediction, float], StepPrediction]


@dataclass(frozen=True)
class _Amount:
    """A cause with an amount: its values, what each does, how unlikely it is, and how it is told."""

    values: Sequence[float]
    apply: Apply
    unlikely: Callable[[float], float]
    """Standard deviations of a value."""
    tell: Callable[[float, StepPrediction], str]


def _scaled(prediction: StepPrediction, names: Sequence[str], factor: float) -> StepPrediction:
    return replace(prediction, phases={n: v * (factor if n in names else 1.0) for n, v in prediction.phases.items()})


def _waits(prediction: StepPrediction, share: float) -> StepPrediction:
    more = prediction.seconds * share
    return replace(
        prediction, phases={n: v + (more if n == "data_seconds" else 0) for n, v in prediction.phases.items()}
    )


def _with_cache(prediction: StepPrediction, share: float) -> StepPrediction:
    more = prediction.bytes_of("reserved") * share
    return replace(prediction, parts={**prediction.parts, "cache_bytes": prediction.parts["cache_bytes"] + more})


def _with_others(prediction: StepPrediction, share: float) -> StepPrediction:
    more = prediction.bytes_of("device") * share
    return replace(
        prediction, parts={n: v + (more if n == "outside_bytes" else 0) for n, v in prediction.parts.items()}
    )


TIME_AMOUNTS = (
    _Amount(
        [n / 100 for n in range(40, 98)],
        lambda p, share: _scaled(p, DEVICE_PHASES, 1 / share),
        lambda share: (1 - share) / 0.2,  # boards under power limits run at 0.7 to 1 of their boost clock; stated
        lambda share, p: (
            f"the GPU runs at {format_percent(share)} of its clock (heat, or a power cap): look at "
            f"nvidia-smi -q -d PERFORMANCE,CLOCK"
        ),
    ),
    _Amount(
        [0.02 * 1.15**n for n in range(40)],
        _waits,
        lambda share: share / (1 + share) / 0.3,
        lambda share, p: f"each step waits {format_seconds(p.seconds * share)} for its data: more data workers",
    ),
    _Amount(
        [1.05 * 1.05**n for n in range(40)],
        lambda p, factor: _scaled(p, ("host_seconds",), factor),
        lambda factor: math.log(factor) / 0.7,
        lambda factor, p: f"the processor issues operators {factor:.1f} times as slowly as forecast",
    ),
)
MEMORY_AMOUNTS = (
    _Amount(
        [0.02 * n for n in range(1, 40)],
        _with_cache,
        lambda share: share / 0.12,
        lambda share, p: (
            f"the allocator holds {format_bytes(p.bytes_of('reserved') * share)} more in fragments: "
            f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        ),
    ),
    _Amount(
        [0.02 * n for n in range(1, 100)],
        _with_others,
        lambda share: share / 0.3,
        lambda share, p: f"other processes hold {format_bytes(p.bytes_of('device') * share)} of the card: nvidia-smi",
    ),
)
COUNTED_BY = {"cache_bytes": ("reserved", "device"), "outside_bytes": ("device",)}
READINGS = {
    "reserved": "the log's peak is what the allocator reserved (torch.cuda.max_memory_reserved)",
    "device": "the log's peak is of the whole device (nvidia-smi)",
}


def time_causes(prediction: StepPrediction, seconds: float | None, accumulation: int = 1) -> list[PartialCause]:
    """Causes of a step's time, none first, each at its best amount; `accumulation` is that of the settings."""
    if seconds is None:
        return [PartialCause("", prediction, 0.0)]
    spread = prediction.spreads["seconds"]

    def miss(changed: StepPrediction) -> float:
        return (math.log(seconds / changed.seconds) / spread) ** 2

    candidates = [PartialCause("", prediction, miss(prediction))]
    candidates += [
        PartialCause(amount.tell(value, prediction), changed, distance)
        for amount in TIME_AMOUNTS
        for value, changed, distance in [_best(amount, prediction, miss)]
    ]
    if accumulation > 1:
        smaller = _scaled(prediction, tuple(prediction.phases), 1 / accumulation)
        text = f"the log counts micro-steps: {accumulation} of them are one optimizer step"
        candidates.append(PartialCause(text, smaller, miss(smaller) + COMPLEXITY))
    return _that_help(candidates)


def memory_causes(prediction: StepPrediction, memory: Mapping[str, int]) -> list[PartialCause]:
    """Causes of a step's memory, none first; one number of unknown kind may be of any counter."""
    candidates = []
    for reading in ("allocated", *READINGS) if "peak" in memory else ("allocated",):
        numbers = {reading if name == "peak" else name: size for name, size in memory.items()}

        def miss(changed: StepPrediction, numbers: Mapping[str, int] = numbers) -> float:
            return sum(
                (math.log(size / changed.bytes_of(name)) / changed.spreads[name]) ** 2 for name, size in numbers.items()
            )

        text = READINGS.get(reading, "")
        unlikely = COMPLEXITY if text else 0.0
        own = [PartialCause(text, prediction, miss(prediction) + unlikely, reading)]
        for amount, part in zip(MEMORY_AMOUNTS, COUNTED_BY, strict=True):
            if any(name in COUNTED_BY[part] for name in numbers):
                value, changed, distance = _best(amount, prediction, miss)
                texts = "; ".join(each for each in (text, amount.tell(value, prediction)) if each)
                own.append(PartialCause(texts, changed, distance + unlikely, reading))
        candidates += _that_help(own)
    return _that_help(candidates)


def _that_help(candidates: Sequence[PartialCause]) -> list[PartialCause]:
    """The first, which is without a cause, and those that come nearer than it."""
    return [candidates[0], *(each for each in candidates[1:] if each.distance < candidates[0].distance)]


def _best(
    amount: _Amount, prediction: StepPrediction, miss: Callable[[StepPrediction], float]
) -> tuple[float, StepPrediction, float]:
    """The amount that lies nearest, what it makes of the step, and its distance."""
    tried = [(value, amount.apply(prediction, value)) for value in amount.values]
    distances = [miss(changed) + amount.unlikely(value) ** 2 + COMPLEXITY for value, changed in tried]
    place = min(range(len(tried)), key=distances.__getitem__)
    return *tried[place], distances[place]


def is_near(prediction: StepPrediction, reading: str, observation: StepObservation) -> bool:
    """Whether both numbers lie within the 80 % spread of a prediction."""
    misses = [] if observation.seconds is None else [("seconds", observation.seconds / prediction.seconds)]
    for name, size in observation.memory.items():
        counter = reading if name == "peak" else name
        misses.append((counter, size / prediction.bytes_of(counter)))
    return all(abs(math.log(ratio)) <= NINTH_DECILE * prediction.spreads[name] for name, ratio in misses)
