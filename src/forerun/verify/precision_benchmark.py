"""Which precision should this model train in, here? Real training steps in each, beside their forecasts.

Forward, backward and update of the model on random tokens, at the lengths asked for. Each precision is warmed up, then
timed several times; peaks are those of the whole step. A precision whose loss or gradients are not finite is not
recommended, however fast it is.
"""

import contextlib
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from forerun.current_work import work
from forerun.data.plan import plan_from_settings
from forerun.errors import InvalidSettings, UnknownModel
from forerun.forecasting.forecast import make_forecast
from forerun.forecasting.request import BF16, FP16, ForecastRequest, require_precision
from forerun.hardware.catalogue import Device
from forerun.hardware.host_memory import freed_memory_held
from forerun.models.catalogue import architecture
from forerun.records import Forecast, Record, StepPhases
from forerun.settings.schema import Precision, Settings
from forerun.step.build import build_step
from forerun.step.heads import generic_workload
from forerun.step.training_step import StepObserver, TrainingStep
from forerun.step.workload import Batch
from forerun.trace import Phase
from forerun.train import measure
from forerun.verify.recalibrate import with_experience

if TYPE_CHECKING:
    from forerun.ledger.store import Ledger

BENCHMARKED: tuple[Precision, ...] = ("fp32", "tf32", "fp16-mixed", "bf16-mixed")
WORKLOADS = {"encoder": "sequence-classification", "causal-lm": "causal-lm", "seq2seq-lm": "seq2seq-lm"}
WARM_UP_STEPS, LEAST_STEPS, STEP_SECONDS = 2, 5, 3.0
"""Warm-up steps, and the least timed steps and seconds of a precision."""
HOST_BOUND = 0.3
"""Share of the forecast step in which the GPU waits for launches, above which a row is flagged."""
WORTH_IT = 1.05
"""Factor by which a precision must be faster to be recommended over a wider one."""


class PrecisionRow(Record):
    """One precision at one length; all null but `refused` where the device does not have it.

    A CPU computes all of them, some by conversion: those are measured too, with `refused` and without a forecast.
    """

    precision: Precision
    sequence_length: int
    refused: str = ""
    step_seconds: float | None = None
    """Median of the timed steps, as are the phases."""
    step_seconds_p10: float | None = None
    step_seconds_p90: float | None = None
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    optimizer_seconds: float | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    forecast_step_seconds: float | None = None
    forecast_peak_allocated_bytes: int | None = None
    is_host_bound: bool = False
    loss_is_finite: bool = False
    gradients_are_finite: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether it trained with finite numbers."""
        return self.loss_is_finite and self.gradients_are_finite


class PrecisionBenchmark(Record):
    """All rows of one model, and what follows from them."""

    model: str
    gpu: str
    micro_batch_size: int
    rows: list[PrecisionRow]
    recommendation: str


def benchmark_precisions(
    model: str,
    device: Device,
    ledger: "Ledger | None" = None,
    *,
    micro_batch_size: int = 8,
    lengths: Sequence[int] = (128,),
    on_progress: Callable[[str], None] = lambda what: None,
) -> PrecisionBenchmark:
    """Train `model` (catalogue name or hub id) for a few steps in every precision on the device here.

    Raises:
        UnknownModel: no such model.
    """
    rows = []
    for length in lengths:
        for precision in BENCHMARKED:
            on_progress(f"{precision}, {length} tokens")
            settings = _settings(model, precision, micro_batch_size, length)
            try:
                require_precision(settings, device)
            except InvalidSettings as error:
                row = PrecisionRow(precision=precision, sequence_length=length, refused=str(error))
                is_computed = device.kind == "cpu" and precision in (*FP16, *BF16)
                rows.append(_row(settings, device, None, row) if is_computed else row)
                continue
            rows.append(_row(settings, device, _forecast(settings, device, ledger)))
    return PrecisionBenchmark(
        model=model,
        gpu=device.name,
        micro_batch_size=micro_batch_size,
        rows=rows,
        recommendation=recommendation(rows),
    )


def recommendation(rows: Sequence[PrecisionRow]) -> str:
    """The fastest sound precision that runs here, unless a wider one is about as fast; summed over the lengths."""
    totals, converted = {}, {}
    for precision in BENCHMARKED:  # from wide to narrow
        mine = [row for row in rows if row.precision == precision]
        if mine and all(row.is_sound for row in mine):
            of_it = converted if mine[0].refused else totals
            of_it[precision] = sum(row.step_seconds or 0.0 for row in mine)
    if not totals:
        return "None: no precision gave a finite loss and finite gradients."
    best = next(iter(totals))
    for precision, seconds in totals.items():
        if totals[best] > WORTH_IT * seconds:
            best = precision
    others = [f"{name} takes {seconds / totals[best]:.2f} times as long" for name, seconds in totals.items()]
    del others[list(totals).index(best)]
    others += [
        f"{name}, which a run here refuses, takes {seconds / totals[best]:.2f} times as long"
        for name, seconds in converted.items()
    ]
    return f"{best}: {', '.join(others)}." if others else f"{best}: the only one."


def _settings(model: str, precision: Precision, size: int, length: int) -> Settings:
    try:
        workload = WORKLOADS[architecture(model).parameters_of]
    except UnknownModel:
        workload = "sequence-classification"
    return Settings.model_validate(
        {
            "name": "precision-benchmark",
            "workload": workload,
            "model": {"name": model},
            "precision": precision,
            "batch": {"micro_batch_size": size, "sequence_length": length},
            "data": {"examples": size},
        }
    )


class _Watch(measure.PhaseTimer):
    """Times the phases, and looks at the gradients before the first update."""

    def __init__(self, device: str, model: nn.Module):
        super().__init__(device)
        self.model = model
        self.gradients_are_finite: bool | None = None

    @contextlib.contextmanager
    def phase(self, phase: Phase, micro_step: int = -1) -> Iterator[None]:
        """Time one phase; look at the gradients before the first optimizer phase."""
        if phase is Phase.OPTIMIZER and self.gradients_are_finite is None:
            gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
            self.gradients_are_finite = all(bool(torch.isfinite(g).all()) for g in gradients)
        with super().phase(phase, micro_step):
            yield


def _forecast(settings: Settings, device: Device, ledger: "Ledger | None") -> Forecast:
    request = ForecastRequest(
        settings, generic_workload(settings.workload), plan_from_settings(settings), device
    )  # fmt: skip
    return make_forecast(request if ledger is None else with_experience(request, ledger))


def _row(
    settings: Settings, device: Device, forecast: Forecast | None, refused: PrecisionRow | None = None
) -> PrecisionRow:  # fmt: skip
    """Measured steps beside their forecast; of a precision that a run here refuses, with the refusal."""
    workload = generic_workload(settings.workload)
    torch.manual_seed(0)
    step = build_step(settings, workload, device.kind, pretrained=False)
    shape = settings.batch
    batch = workload.example_batch(settings, shape.micro_batch_size, shape.sequence_length)
    batch = {name: tensor.to(device.kind) for name, tensor in batch.items()}
    memory_guard = freed_memory_held() if device.kind == "cpu" else contextlib.nullcontext()
    with memory_guard, work(f"training {settings.model.name} in {settings.precision}, {shape.sequence_length} tokens"):
        measured = _measure(settings, step, batch, forecast)
    return measured if refused is None else measured.model_copy(update={"refused": refused.refused})


def _measure(settings: Settings, step: TrainingStep, batch: Batch, forecast: Forecast | None) -> PrecisionRow:
    watch = _Watch(step.device_type, step.model)
    scale = step.scaler.get_scale() if step.scaler is not None else 1.0
    for _ in range(WARM_UP_STEPS):
        step.run([batch], watch)
    # torch/amp/grad_scaler.py (2.13): non-finite gradients skip the update and halve the scale, then training goes on.
    scaled_down = step.scaler is not None and step.scaler.get_scale() < scale
    measure.reset_peaks(step.device_type)
    allocated: int | None = None
    if step.device_type == "cpu":
        _, allocated = measure.run_measuring_allocations(lambda: step.run([batch], StepObserver()), step, [batch])
    watch.take(0.0)
    durations: list[float] = []
    parts: list[StepPhases] = []
    loss = math.nan
    while len(durations) < LEAST_STEPS or sum(durations) < STEP_SECONDS:
        start = watch.now()
        loss = float(step.run([batch], watch).loss)
        durations.append(watch.now() - start)
        parts.append(watch.take(durations[-1]))
    phases = {name: statistics.median(getattr(part, name) for part in parts) for name in StepPhases.model_fields}
    memory = measure.measured_memory(step.device_type, allocated)
    deciles = statistics.quantiles(durations, n=10)
    step_seconds = None if forecast is None else forecast.step.seconds.expected
    host_seconds = 0.0 if forecast is None else forecast.step.phases.host_seconds
    return PrecisionRow(
        precision=settings.precision,
        sequence_length=settings.batch.sequence_length,
        step_seconds=statistics.median(durations),
        step_seconds_p10=deciles[0],
        step_seconds_p90=deciles[-1],
        forward_seconds=phases["forward_seconds"],
        backward_seconds=phases["backward_seconds"],
        optimizer_seconds=phases["optimizer_seconds"],
        peak_allocated_bytes=memory.peak_allocated_bytes,
        peak_reserved_bytes=memory.peak_reserved_bytes,
        forecast_step_seconds=step_seconds,
        forecast_peak_allocated_bytes=None if forecast is None else forecast.memory.peak_allocated_bytes,
        is_host_bound=step.device_type == "cuda" and host_seconds > HOST_BOUND * (step_seconds or 0.0),
        loss_is_finite=math.isfinite(loss),
        gradients_are_finite=bool(watch.gradients_are_finite) or scaled_down,
    )
