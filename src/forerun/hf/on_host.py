"""The settings of a Trainer, for a forecast of its steps on the CPU at hand by our own loop.

The trainer's own model (copied without its weights), loss, collator and data are traced; batch shapes are those of the
first batches that its data loader gives.

Not covered: models already quantised by bitsandbytes, optimizers that this project does not have, several devices, and
the `Trainer`'s own evaluation loop beyond scoring.
"""

import copy
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer

from forerun.data.plan import BatchPlan, BatchShape
from forerun.errors import InvalidSettings, NotSupported
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings
from forerun.step.workload import Batch, LossSum

WORKLOAD = "hugging-face-trainer"
SAMPLED_BATCHES = 64
"""Batches of the data loader from which the batch shapes are learnt."""
OPTIMIZERS = {
    "adamw_torch": ("adamw", "foreach"), "adamw_torch_fused": ("adamw", "fused"),
    "adamw_bnb_8bit": ("adamw-8bit", "auto"), "adamw_8bit": ("adamw-8bit", "auto"),
    "paged_adamw": ("paged-adamw", "auto"), "paged_adamw_32bit": ("paged-adamw", "auto"),
    "paged_adamw_8bit": ("paged-adamw-8bit", "auto"), "lion_32bit": ("lion", "auto"),
}  # fmt: skip
"""The Trainer's name → ours and its implementation (`OptimizerNames`, transformers/training_args.py, 5.23)."""
NEVER = 10**9
"""Steps between checkpoints of a Trainer that saves none."""


class TrainerWorkload:
    """The trainer's model and loss as a workload; a step's loss is the mean over its micro-batches."""

    name = WORKLOAD
    is_ready = True
    """Whether the model comes with its dtypes and adapters, so that `build_step` adds none."""

    def __init__(self, trainer: Trainer, sample: Batch):
        self.trainer, self.sample = trainer, sample

    def build_model(self, settings: Settings, *, pretrained: bool) -> nn.Module:
        """A copy of the trainer's model without weights."""
        return without_weights(self.trainer.model)  # type: ignore[arg-type]

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
    model: Any = trainer.model
    precision, dtype = _formats(model, a)
    return settings_from({
        "name": a.run_name or WORKLOAD, "workload": WORKLOAD,
        "model": {"name": getattr(getattr(model, "config", None), "name_or_path", "") or type(model).__name__,
                  "dtype": dtype},
        "precision": precision,
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


def _formats(model: nn.Module, arguments: Any) -> tuple[str, str]:
    """`precision` and `model.dtype` of a model as it is and the trainer's arguments."""
    dtypes = {p.dtype for p in model.parameters()}
    if torch.bfloat16 in dtypes and arguments.bf16:
        return "bf16-mixed", "bfloat16"
    for dtype, name in ((torch.bfloat16, "bf16-true"), (torch.float16, "fp16-true")):
        if dtype in dtypes:
            return name, "auto"
    if arguments.bf16:
        return "bf16-mixed", "auto"
    return "fp16-mixed" if arguments.fp16 else "tf32" if arguments.tf32 else "fp32", "auto"
