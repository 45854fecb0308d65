"""The forecast for people who train with the Hugging Face `Trainer`, without changing their trainer.

    forecast = forerun.hf.forecast_trainer(trainer, gpu="l4")          # before training; nothing is trained
    trainer.add_callback(forerun.hf.ForerunCallback(forecast))         # measures the run and compares it
    trainer.train()

The trainer's own model (copied without its weights), loss, collator and data are traced on the virtual GPU; batch
shapes are those of the first batches that its data loader gives. The callback enters the run in the ledger, from which
the next forecast learns.

Not covered: models already quantised by bitsandbytes, optimizers that this project does not have, several devices, and
the `Trainer`'s own evaluation loop beyond scoring.
"""

import copy
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

from forerun.api import find_device
from forerun.data.plan import BatchPlan, BatchShape
from forerun.errors import InvalidSettings, NotSupported
from forerun.forecasting.forecast import make_forecast
from forerun.forecasting.request import ForecastRequest
from forerun.ledger.store import Ledger, default_url, open_ledger
from forerun.records import (
    Forecast,
    MeasuredRun,
    MeasuredStep,
    Measurement,
    ParameterCounts,
    RunPhases,
    StepPhases,
    Verdict,
)
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings
from forerun.step.workload import Batch, LossSum
from forerun.train import measure
from forerun.train.evidence import Witness
from forerun.verify.compare import verify
from forerun.verify.recalibrate import with_experience

WORKLOAD = "hugging-face-trainer"
SAMPLED_BATCHES = 64
"""Batches of the data loader from which the batch shapes are learnt."""
OPTIMIZERS = {
    "adamw_torch": ("adamw", "foreach"), "adamw_torch_fused": ("adamw", "fused"),
    "adamw_bnb_8bit": ("adamw-8bit", "auto"), "adamw_8bit": ("adamw-8bit", "auto"),
    "paged_adamw_8bit": ("paged-adamw-8bit", "auto"), "lion_32bit": ("lion", "auto"),
}  # fmt: skip
"""The Trainer's name → ours and its implementation (`OptimizerNames`, transformers/training_args.py, 5.23)."""
COLD_STEPS = 2
"""Steps at the start of a run that do not count as warm."""
NEVER = 10**9
"""Steps between checkpoints of a Trainer that saves none."""


def forecast_trainer(trainer: Trainer, gpu: str = "a100-40gb", ledger: str | None = None) -> Forecast:
    """Memory, time and cost of `trainer.train()` on `gpu` (a catalogue name, or `cpu` for here), before it starts.

    `ledger` is the SQLAlchemy URL of one whose calibration and past runs count; without it nothing is read.

    Raises:
        ForerunError: the trainer has no data, or uses what cannot be forecast; see `forerun.errors`.
    """
    plan, sample = plan_of(trainer)
    settings = settings_of(trainer, plan)
    request = ForecastRequest(settings, TrainerWorkload(trainer, sample), plan, find_device(gpu))
    if ledger is None:
        return make_forecast(request)
    with open_ledger(ledger) as store:
        return make_forecast(with_experience(request, store))


class TrainerWorkload:
    """The trainer's model and loss as a workload; a step's loss is the mean over its micro-batches."""

    name = WORKLOAD
    is_ready = True
    """Whether the model comes with its dtypes and adapters, so that `build_step` adds none."""

    def __init__(self, trainer: Trainer, sample: Batch):
        self.trainer, self.sample = trainer, sample

    def build_model(self, settings: Settings, *, pretrained: bool) -> nn.Module:
        """A copy of the trainer's model without weights."""
        return without_weights(_model_of(self.trainer))

    def example_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Zeros in the shapes of a real batch, with `size` samples of `length` tokens."""
        rows, tokens = _shape_of(self.sample)
        batch = {}
        for key, value in self.sample.items():
            shape = [size if d == 0 and n == rows else length if n == tokens else n for d, n in enumerate(value.shape)]
            batch[key] = (torch.ones if key.endswith("mask") else torch.zeros)(shape, dtype=value.dtype)
        return batch

    def loss(self, model: nn.Module, batch: Batch) -> LossSum:
        """The loss that the trainer computes for a micro-batch."""
        # transformers/trainer.py:2082 (5.23) passes num_items_in_batch too, which only scales the loss by tokens.
        outputs = self.trainer.compute_loss(model, dict(batch))
        return LossSum(outputs[0] if isinstance(outputs, tuple) else outputs)

    def count(self, batch: Batch) -> float:
        """The weight of a micro-batch: 1, since its loss is a mean already."""
        return 1.0

    def encoder(self, model: nn.Module) -> nn.Module | None:
        """None: a Trainer freezes nothing on a schedule."""
        return None

    def learning_rate_scale(self, parameter_name: str) -> float:
        """1: all parameters have one learning rate."""
        return 1.0


def without_weights(model: nn.Module) -> nn.Module:
    """A copy of `model` on `meta`: shapes, dtypes and what is trainable stay, values and memory do not.

    Raises:
        NotSupported: parameters of a kind that holds packed values.
    """
    # torch/nn/parameter.py:74 (2.13): a copy takes what `memo` has for a parameter's id, so tied weights stay tied.
    memo: dict[int, Any] = {}
    for name, parameter in model.named_parameters():
        if type(parameter) is not nn.Parameter:
            raise NotSupported(
                f"trainer.model: {name} is a {type(parameter).__name__}, whose values are packed; found by "
                f"forecast_trainer. Forecast it from settings with quantization=nf4 or int8 instead."
            )
        memo[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, memo)


def plan_of(trainer: Trainer) -> tuple[BatchPlan, Batch]:
    """The batch shapes of an epoch, from the first batches of the trainer's own loader, and the largest of them.

    Raises:
        InvalidSettings: there is no training data, or its batches have no token ids.
    """
    if trainer.train_dataset is None:
        raise InvalidSettings("trainer.train_dataset: a forecast needs the data; found none. Give the Trainer one.")
    arguments = trainer.args
    shapes: list[BatchShape] = []
    largest: Batch | None = None
    tokens = 0.0
    # torch/utils/data/dataloader.py:690 (2.13): an iterator draws its seed from the global generator, which training
    # must find as it was.
    with torch.random.fork_rng():
        loader = trainer.get_train_dataloader()
        for batch in loader:
            tensors = {key: value.cpu() for key, value in batch.items() if isinstance(value, Tensor)}
            shape = BatchShape(*_shape_of(tensors))
            shapes.append(shape)
            mask = tensors.get("attention_mask")
            tokens += shape.size * shape.length if mask is None or mask.ndim != 2 else float(mask.sum())
            if largest is None or (shape.size * shape.length, shape.length) > _weight(largest):
                largest = tensors
            if len(shapes) == SAMPLED_BATCHES:
                break
    if largest is None:
        raise InvalidSettings("trainer.train_dataset: a forecast needs at least one batch; found none. Add data.")
    try:
        batches = len(loader)
    except TypeError:  # a stream: the number of steps is given
        batches = arguments.max_steps * arguments.gradient_accumulation_steps
    scale = batches / len(shapes)
    shape_counts = tuple((shape, max(1, round(number * scale))) for shape, number in sorted(Counter(shapes).items()))
    steps = math.ceil(batches / arguments.gradient_accumulation_steps)
    samples = sum(shape.size * number for shape, number in shape_counts)
    caveats = () if scale == 1 else (f"batch shapes are those of the first {len(shapes)} of {batches} batches.",)
    return BatchPlan(shape_counts, steps, samples, tokens * scale, caveats), largest


def _shape_of(batch: Mapping[str, Tensor]) -> tuple[int, int]:
    if "input_ids" not in batch:
        raise InvalidSettings(
            f"trainer.data_collator: batches need input_ids; found {', '.join(sorted(batch)) or 'nothing'}. "
            f"Use forerun.forecast_step for such a model."
        )
    return batch["input_ids"].shape[0], batch["input_ids"].shape[1]


def _weight(batch: Batch) -> tuple[int, int]:
    size, length = _shape_of(batch)
    return size * length, length


def settings_of(trainer: Trainer, plan: BatchPlan) -> Settings:
    """The trainer's arguments as settings.

    Raises:
        NotSupported: an optimizer that this project does not have, or several devices.
    """
    a = trainer.args
    optimizer = str(getattr(a.optim, "value", a.optim))
    if optimizer not in OPTIMIZERS or trainer.optimizer is not None:
        unsupported = optimizer if trainer.optimizer is None else type(trainer.optimizer).__name__
        raise NotSupported(f"args.optim: one of {', '.join(OPTIMIZERS)} can be forecast; found {unsupported!r}.")
    if a.world_size > 1:
        raise NotSupported(f"args: one device is forecast from a Trainer; found {a.world_size} processes.")
    name, implementation = OPTIMIZERS[optimizer]
    saving = str(getattr(a.save_strategy, "value", a.save_strategy))
    evaluating = str(getattr(a.eval_strategy, "value", a.eval_strategy)) != "no" and trainer.eval_dataset is not None
    rows = len(trainer.eval_dataset) if evaluating and hasattr(trainer.eval_dataset, "__len__") else 0  # type: ignore[arg-type]
    model = _model_of(trainer)
    return settings_from({
        "name": a.run_name or WORKLOAD, "workload": WORKLOAD,
        "model": {"name": getattr(getattr(model, "config", None), "name_or_path", "") or type(model).__name__},
        "precision": _precision(model, a),
        "optimizer": {"name": name, "implementation": implementation, "learning_rate": a.learning_rate,
                      "weight_decay": a.weight_decay, "max_gradient_norm": a.max_grad_norm or None},
        "batch": {"micro_batch_size": a.per_device_train_batch_size, "padding": "longest",
                  "gradient_accumulation_steps": a.gradient_accumulation_steps,
                  "sequence_length": plan.longest.length},
        "data": {"examples": max(plan.samples, a.per_device_train_batch_size)},
        "schedule": {"epochs": a.num_train_epochs, "max_steps": a.max_steps if a.max_steps > 0 else None},
        "activation_checkpointing": "blocks" if a.gradient_checkpointing else "none",
        "compile": (a.torch_compile_mode or "default") if a.torch_compile else "none",
        "checkpoints": {"every_steps": {"steps": int(a.save_steps), "epoch": plan.steps}.get(saving, NEVER)},
        "evaluation": {"examples": rows}, "seed": a.seed,
    })  # fmt: skip


def _precision(model: nn.Module, arguments: Any) -> str:
    dtypes = {p.dtype for p in model.parameters()}
    for dtype, name in ((torch.bfloat16, "bf16-true"), (torch.float16, "fp16-true")):
        if dtype in dtypes:
            return name
    if arguments.bf16:
        return "bf16-mixed"
    return "fp16-mixed" if arguments.fp16 else "tf32" if arguments.tf32 else "fp32"


def _model_of(trainer: Trainer) -> nn.Module:
    if trainer.model is None:
        raise NotSupported(
            "trainer.model: a forecast needs the model; found model_init alone. Give the Trainer a model."
        )
    return trainer.model  # type: ignore[return-value]


class ForerunCallback(TrainerCallback):
    """Measures a `Trainer` run, enters it with its forecast in the ledger, and compares the two."""

    def __init__(self, forecast: Forecast, ledger: str | None = None):
        """`ledger` is a SQLAlchemy URL; without one it is the user's own."""
        self.forecast = forecast
        self.url = ledger or default_url()
        self.verdict: Verdict | None = None
        """The verdict, once training has ended."""
        self._step_seconds: list[float] = []
        self._since = 0.0
        self._phases: Counter[str] = Counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock and reset the memory peaks."""
        device = args.device.type
        measure.reset_peaks(device)
        self._device, self._witness, self._started = device, Witness(device), time.perf_counter()
        self._mark()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the time of an optimizer step."""
        self._step_seconds.append(self._mark())
        self._witness.step_done()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add the time of an evaluation."""
        self._phases["evaluation_seconds"] += self._mark()  # type: ignore[assignment]

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add the time of a checkpoint."""
        self._phases["checkpoint_seconds"] += self._mark()  # type: ignore[assignment]
        self._phases["written"] += 1

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Enter the run in the ledger and compare it with its forecast."""
        measured = self._measurement(model)
        with open_ledger(self.url) as ledger:
            run_id = self._enter(ledger, args, measured)
            self.verdict = verify(run_id, self.forecast, measured)
            ledger.record_verdict(run_id, self.verdict)
            ledger.record_event(run_id, "verified")

    def _enter(self, ledger: Ledger, args: Any, measured: Measurement) -> str:
        run_id = ledger.start_run(
            name=args.run_name or WORKLOAD, workload=WORKLOAD, settings={"workload": WORKLOAD},
            settings_hash=self.forecast.settings_hash, gpu=self.forecast.gpu, folder=args.output_dir or "",
            versions=measure.versions(),
        )  # fmt: skip
        ledger.record_forecast(run_id, self.forecast)
        ledger.record_measurement(run_id, measured)
        ledger.record_event(run_id, "finished")
        return run_id

    def _measurement(self, model: nn.Module) -> Measurement:
        warm = self._step_seconds[COLD_STEPS:] or self._step_seconds
        if not warm:
            raise InvalidSettings("The Trainer made no steps, so there is nothing to compare. Train at least one.")
        seconds, expected = sum(warm) / len(warm), self.forecast.step
        phases = RunPhases(
            training_seconds=sum(self._step_seconds), evaluation_seconds=self._phases["evaluation_seconds"],
            checkpoint_seconds=self._phases["checkpoint_seconds"],
        )  # fmt: skip
        own = list(model.parameters())
        return Measurement(
            settings_hash=self.forecast.settings_hash,
            gpu=self.forecast.gpu,
            parameters=ParameterCounts(
                total=sum(p.numel() for p in own), trainable=sum(p.numel() for p in own if p.requires_grad)
            ),
            memory=measure.measured_memory(self._device, None),
            step=MeasuredStep(
                seconds=seconds,
                phases=StepPhases(host_seconds=seconds),
                tokens_per_second=expected.tokens_per_second * expected.seconds.expected / seconds,
                samples_per_second=expected.samples_per_second * expected.seconds.expected / seconds,
            ),
            run=MeasuredRun(
                steps_per_epoch=self.forecast.run.steps_per_epoch, total_steps=len(self._step_seconds),
                checkpoints_written=int(self._phases["written"]), checkpoint_bytes=self.forecast.run.checkpoint_bytes,
                seconds=time.perf_counter() - self._started, phases=phases,
            ),
            versions=measure.versions(),
            evidence=self._witness.evidence(len(self._step_seconds), 0),
        )  # fmt: skip

    def _mark(self) -> float:
        """Seconds since the last mark, once the device has finished its queued work."""
        if self._device == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        elapsed, self._since = now - self._since, now
        return elapsed


__all__: Sequence[str] = ["ForerunCallback", "forecast_trainer"]
