"""Forecast of a Trainer on a GPU: a copy of it trains on the virtual GPU, and evaluates a few batches.

Batches of uneven length: `uneven.py`. What past runs say of this trainer on this GPU corrects the times.
"""

import contextlib
import copy
import hashlib
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, Subset
from transformers import Trainer, TrainerCallback

from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import replay_clock
from forerun.errors import InvalidSettings
from forerun.experience import Correction, DeviceCalibration
from forerun.forecasting.correcting import corrected
from forerun.forecasting.live_card import CardMemory, clock_of
from forerun.forecasting.program import ProgramForecast, RunReading, forecast_run
from forerun.forecasting.ranges import PROGRAM, group_of
from forerun.hardware.catalogue import Device
from forerun.hf.on_host import WORKLOAD
from forerun.hf.twin import callbacks_left_out, process_as_it_was, twin_of
from forerun.hf.uneven import ChosenBatches, SampledStep, choose_steps, sample_steps, weights_of_mean
from forerun.units import format_bytes
from forerun.verify.recalibrate import recalibrate
from forerun.virtual.cuda.enough_steps import ProgramStopped
from forerun.virtual.cuda.launchers import Program
from forerun.virtual.cuda.run import ProgramRun, run_in_session, watcher_of
from forerun.virtual.cuda.session import CudaSession
from forerun.virtual.cuda.steps import StepWatcher
from forerun.virtual.cuda.trainer_lengths import batches_rows

if TYPE_CHECKING:
    from forerun.ledger.store import Ledger

EVALUATED_BATCHES = 4
"""Batches that are evaluated here; what each adds to memory and time is taken for all others."""
PLACES = ("output_dir", "logging_dir", "run_name", "hub_token", "hub_model_id", "report_to", "disable_tqdm")
"""Arguments that change nothing about memory and time."""


@dataclass
class _Evaluation(TrainerCallback):
    """Keeps evaluation out of training, and notes where each batch ends in the trace, and the peak of each."""

    session: CudaSession
    begin: int = 0
    ends: list[int] = field(default_factory=list)
    allocated_bytes: list[int] = field(default_factory=list)
    peak: int = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Evaluate after training alone."""
        control.should_evaluate = False

    on_epoch_end = on_step_end

    def start(self) -> None:
        """Evaluation begins."""
        self.begin = len(self.session.recorder.trace.events)
        self.session.card.reset_peaks()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note a batch."""
        self.ends.append(len(self.session.recorder.trace.events))
        self.allocated_bytes.append(self.session.card.allocated_bytes)

    def end(self) -> None:
        """Evaluation is over."""
        self.peak = self.session.card.peak_allocated_bytes

    @property
    def growth_bytes(self) -> int:
        """Predictions of one batch, as far as they stay on the card."""
        # the first batch is kept as it is; of later ones a copy is, beside the batch itself
        return max(0, self.allocated_bytes[2] - self.allocated_bytes[1]) if len(self.ends) > 2 else 0

    def peak_bytes(self, batches: int, every: int | None) -> int:
        """Peak of an evaluation of `batches`, which are moved to the host after `every` so many.

        Each batch is put to those before in new memory (transformers/trainer_pt_utils.py, 5.23, `nested_concat`), so
        that all are there twice when the last one comes.
        """
        count, size = batches if every is None else min(batches, every), self.growth_bytes
        later = self.peak + max(0, count - len(self.ends)) * size
        return max(later, self.allocated_bytes[0] - size + 2 * count * size if size else 0)

    def batch_seconds(self, device: Device) -> float:
        """Seconds of one batch: the mean of those after the first."""
        trace, places = self.session.recorder.trace, [self.begin, *self.ends]
        begin = places[1] if len(places) > 2 else places[0]
        part = trace.part(begin, places[-1])
        return replay_clock(part, PriorCosts.of(trace, device)).seconds / max(1, len(places) - 2)


def forecast_on_card(trainer: Trainer, device: Device, store: "Ledger | None" = None) -> ProgramForecast:
    """Memory, time and cost of `trainer.train()` on a GPU; a ledger adds what was measured there before.

    Raises:
        InvalidSettings: there is no training data.
        NotSupported: the model has packed values.
        Exception: whatever the trainer itself raises when it trains.
    """
    session = CudaSession(device, CardMemory(device, is_limited=False), clock=clock_of(device))
    watcher = watcher_of(session)
    training = _Training(trainer, session)
    with process_as_it_was():
        run = run_in_session(Program(target=type(trainer).__name__), session, watcher, execute=training.execute)
    if run.failure is not None:
        raise run.failure
    calibration = None if store is None else store.calibration(device.name)
    forecast = _forecast(training, run, device, calibration)
    if store is None:
        return forecast
    history = store.outcomes(device.name)
    target = {"workload": WORKLOAD, "model": type(trainer.model).__name__}
    correction = recalibrate(target, forecast.settings_hash, history)
    trace = session.recorder.trace
    group = group_of(trace, PriorCosts.of(trace, device, calibration=calibration), PROGRAM)
    return corrected(forecast, correction if correction.terms else Correction(), group)


@dataclass
class _Training:
    """What the copy of a trainer does on the virtual GPU."""

    trainer: Trainer
    session: CudaSession
    sampled: list[SampledStep] = field(default_factory=list)
    selection: list[SampledStep] = field(default_factory=list)
    evaluation: _Evaluation | None = None

    def __post_init__(self) -> None:
        if evaluates(self.trainer):
            self.evaluation = _Evaluation(self.session)

    def execute(self, _: Program, watcher: StepWatcher) -> None:
        """Train until steps repeat, or the selected ones are through; then evaluate a few batches."""
        twin = twin_of(self.trainer)
        self._choose_batches(twin, watcher)
        if self.evaluation is not None:
            twin.add_callback(self.evaluation)
            twin.args.eval_on_start = False
        with contextlib.suppress(ProgramStopped):
            twin.train()
        if self.evaluation is not None:
            self._evaluate(twin, self.evaluation)

    def _choose_batches(self, twin: Trainer, watcher: StepWatcher) -> None:
        loader = twin.get_train_dataloader()
        self.sampled = sample_steps(loader, twin.args.gradient_accumulation_steps)
        if not self.sampled:
            raise InvalidSettings("trainer.train_dataset: a forecast needs at least one batch; found none. Add data.")
        self.selection = choose_steps(self.sampled)
        if self.selection:
            watcher.most_steps = len(self.selection)
            twin.get_train_dataloader = lambda: ChosenBatches(loader, self.selection)  # type: ignore[method-assign]

    def _evaluate(self, twin: Trainer, evaluation: _Evaluation) -> None:
        rows = EVALUATED_BATCHES * twin.args.eval_batch_size
        twin.eval_dataset = _first(twin.eval_dataset, rows)
        if twin.compute_metrics is not None:  # the user's own: predictions have no values here
            twin.compute_metrics = lambda _: {}
        evaluation.start()
        twin.evaluate()
        evaluation.end()


def evaluates(trainer: Trainer) -> bool:
    """Whether the run evaluates."""
    strategy = str(getattr(trainer.args.eval_strategy, "value", trainer.args.eval_strategy))
    return strategy != "no" and trainer.eval_dataset is not None


def _first(dataset: Any, rows: int) -> Any:
    """The first rows of a dataset, of one of each name, or of a stream."""
    if isinstance(dataset, dict):
        return {name: _first(part, rows) for name, part in itertools.islice(dataset.items(), 1)}
    if hasattr(dataset, "select"):
        return dataset.select(range(min(rows, len(dataset))))
    if isinstance(dataset, IterableDataset):
        return _FirstRows(dataset, rows)
    return Subset(dataset, range(min(rows, len(dataset))))


class _FirstRows(IterableDataset):
    def __init__(self, stream: Any, rows: int):
        self.stream, self.rows = stream, rows

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self.stream), self.rows)


def _forecast(
    training: _Training, run: ProgramRun, device: Device, calibration: DeviceCalibration | None
) -> ProgramForecast:
    trainer = training.trainer
    weights, ran = None, training.selection[1 : len(run.watcher.spans)]
    if ran:
        weights = weights_of_mean(ran, training.sampled).tolist()
    reading = RunReading(calibration=calibration, step_weights=weights)
    forecast = forecast_run(run, device, [_describe(trainer)], 1, None, None, reading=reading)
    step, seconds = forecast.step, forecast.step.seconds.expected
    if seconds:
        samples, tokens = (
            sum(getattr(s, n) for s in training.sampled) / len(training.sampled) for n in ("samples", "tokens")
        )
        step = step.model_copy(update={"samples_per_second": samples / seconds, "tokens_per_second": tokens / seconds})
    warnings = list(forecast.warnings)
    names = callbacks_left_out(trainer)
    if names:
        warnings.append(f"Your own callbacks are not called; what they change is not forecast: {', '.join(names)}.")
    lengths = {s.largest_batch[1] for s in training.sampled}
    if training.selection:
        warnings.append(
            f"Batches are uneven (largest rows of {min(lengths)} to {max(lengths)} elements in the first "
            f"{len(training.sampled)} steps): {len(training.selection)} steps were run, the largest among them."
        )
    forecast = forecast.model_copy(update={"step": step, "warnings": warnings})
    return forecast if training.evaluation is None else _with_evaluation(forecast, training, run, device)


def _with_evaluation(
    forecast: ProgramForecast, training: _Training, run: ProgramRun, device: Device
) -> ProgramForecast:
    """Evaluation's own time and memory: predictions stay on the card until all batches are through."""
    evaluation, arguments = training.evaluation, training.trainer.args
    if evaluation is None or not evaluation.ends:
        return forecast
    rows = batches_rows(training.trainer.eval_dataset)
    batches = math.ceil(rows / max(1, arguments.eval_batch_size)) or len(evaluation.ends)
    peak = evaluation.peak_bytes(batches, arguments.eval_accumulation_steps)
    length = run.watcher.program_length
    count = 0 if length is None else length.evaluation_batches
    phases = forecast.run.phases.model_copy(update={"evaluation_seconds": count * evaluation.batch_seconds(device)})
    memory, training_peak = forecast.memory, forecast.memory.peak_allocated_bytes
    excess = max(0, peak - training_peak)
    warnings = list(forecast.warnings)
    if excess:
        grow = {name: value + excess for name, value in memory.device_bytes.model_dump().items()}
        breakdown = memory.breakdown.model_copy(update={"other_bytes": memory.breakdown.other_bytes + excess})
        memory = memory.model_copy(update={
            "peak_allocated_bytes": peak, "peak_reserved_bytes": memory.peak_reserved_bytes + excess,
            "device_bytes": memory.device_bytes.model_copy(update=grow), "breakdown": breakdown,
        })  # fmt: skip
        warnings.append(
            f"Memory peaks in evaluation, {format_bytes(excess)} above training: predictions of {batches} batches stay "
            f"on the card, {format_bytes(evaluation.growth_bytes)} each. Set eval_accumulation_steps, or "
            "preprocess_logits_for_metrics to keep less."
        )
    memory = memory.model_copy(update={"phase_peaks": {"training": training_peak, "scoring": peak}})
    fits = forecast.fits and memory.device_bytes.conservative <= memory.capacity_bytes
    return _with_phases(forecast, phases).model_copy(update={"memory": memory, "warnings": warnings, "fits": fits})


def _with_phases(forecast: ProgramForecast, phases: Any) -> ProgramForecast:
    changed = forecast.model_copy(update={"run": forecast.run.model_copy(update={"phases": phases})})
    before, after = (sum(each.run.phases.model_dump().values()) for each in (forecast, changed))
    return changed if before == 0 else changed.model_copy(update={"run": _longer(changed, after / before)})


def _longer(forecast: ProgramForecast, factor: float) -> Any:
    seconds = {name: value * factor for name, value in forecast.run.seconds.model_dump().items()}
    cost = None if forecast.run.cost is None else forecast.run.cost * factor
    return forecast.run.model_copy(update={"seconds": forecast.run.seconds.model_copy(update=seconds), "cost": cost})


def _describe(trainer: Trainer) -> str:
    """A line that stands for the trainer's work: two that train alike have the same."""
    arguments = {n: v for n, v in copy.copy(trainer.args).to_dict().items() if n not in PLACES}
    shapes = [(n, tuple(p.shape), str(p.dtype), p.requires_grad) for n, p in trainer.model.named_parameters()]  # type: ignore[union-attr]
    content = json.dumps([arguments, shapes, batches_rows(trainer.train_dataset)], default=str, sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    return f"{type(trainer).__name__} of {type(trainer.model).__name__} {digest}"
