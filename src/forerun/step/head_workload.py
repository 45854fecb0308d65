"""What the generic workloads of one head share: the model, its batches, and a loss summed over valid labels.

`heads.py` has the workloads of text, `media.py` those of images and sound.
"""

import contextlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerun.data.token_data import IGNORED
from forerun.errors import NotSupported
from forerun.models.build import build_model, config_of
from forerun.models.catalogue import hub_id
from forerun.models.first_weights import first_weights
from forerun.models.smollm2 import is_smollm2, load_smollm2
from forerun.settings.schema import Settings
from forerun.step.attention import LONGEST_ARGUMENT, OFFSETS, takes_offsets
from forerun.step.chunked_loss import chunked_cross_entropy, hidden_for_logits, require_chunkable
from forerun.step.compiled_loss import COMPILED_CRITERION, is_compiled_whole, rows_of_one_document
from forerun.step.documents import (
    BOUNDARIES,
    DOCUMENTS,
    FIRSTS,
    LONGEST,
    even_boundaries,
    masks_by_layer,
    pooled_by_document,
    position_offset,
    require_packable,
)
from forerun.step.fused_kernels import FUSED_LOSS, FusedLoss, require_kernels
from forerun.step.library_versions import KEEPS_NARROW, SHIFTS_LOGITS, copies_logits, keeps_narrow_logits
from forerun.step.parallel import unwrapped, whole
from forerun.step.prompt_adapters import PROMPT_TOKENS
from forerun.step.workload import Batch, LossSum

NOT_INPUTS = ("labels", "count", DOCUMENTS, FIRSTS, BOUNDARIES, LONGEST)
IN_CHUNKS = "takes_cross_entropy_in_chunks"
"""Attribute of models whose settings ask for it."""


class HeadWorkload:
    """A Hugging Face model with one head; subclasses say what a batch holds and which labels its logits answer."""

    name: str
    is_causal = False

    def __init__(self, config_fields: Mapping[str, Any] | None = None):
        """`config_fields` are set on the model's configuration: what the data decide, such as `id2label`."""
        self.config_fields = dict(config_fields or {})

    @property
    def head(self) -> str:
        """Which head the model has (`models.build.WORKLOADS`); a recipe's workload has a name of its own."""
        return self.name

    def build_model(self, settings: Settings, *, pretrained: bool) -> nn.Module:
        """The architecture with this workload's head."""
        model = _model(settings, self.head, self.config_fields, pretrained=pretrained)
        if settings.batch.padding == "packed":
            require_packable(model, self.head)
        require_kernels(settings, model, self.head)
        if self.is_causal and copies_logits(settings.versions, config_of(settings).model_type):
            setattr(model, SHIFTS_LOGITS, True)
            setattr(model, KEEPS_NARROW, keeps_narrow_logits(settings.versions))
        if settings.cross_entropy == "chunked":
            require_chunkable(model, self.head)
            setattr(model, IN_CHUNKS, True)
        return model

    def example_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Token ids, and what else the head wants; (size, length)."""
        batch = self.padded_batch(settings, size, length)
        return batch if settings.batch.padding != "packed" else self._packed(batch, settings)

    def padded_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """The example where each row is one sample."""
        raise NotImplementedError

    def _packed(self, batch: Batch, settings: Settings) -> Batch:
        """The same rows, each full of documents of the mean length."""
        ids = batch["input_ids"]
        size, length = ids.shape
        batch = {key: value for key, value in batch.items() if key != "attention_mask"}
        boundaries = even_boundaries(size, length, documents_in_row(settings, length))
        return {
            **batch, DOCUMENTS: torch.ones_like(ids), "position_ids": torch.zeros_like(ids),
            BOUNDARIES: torch.tensor(boundaries, dtype=torch.int32), LONGEST: torch.tensor(length, device="cpu"),
        }  # fmt: skip

    def loss(self, model: nn.Module, batch: Batch) -> LossSum:
        """Loss summed over valid labels."""
        inputs: dict[str, Any] = {key: value for key, value in batch.items() if key not in NOT_INPUTS}
        bare = unwrapped(model)
        prompt = getattr(bare, PROMPT_TOKENS, 0)
        labels = F.pad(batch["labels"], (prompt, 0), value=IGNORED) if prompt else batch["labels"]
        with contextlib.ExitStack() as stack:
            if DOCUMENTS in batch:
                self._keep_apart(bare, batch, inputs, stack)
            elif is_compiled_whole(bare):
                stack.enter_context(rows_of_one_document())
            criterion = getattr(bare, COMPILED_CRITERION, self.criterion)
            if makes_no_logits(bare):
                return self.loss_without_logits(model, inputs, self.targets(labels))
            if getattr(bare, SHIFTS_LOGITS, False):
                logits = model(**inputs).logits  # lives until the loss is there: it is part of the output
                wide = logits.float()
                if not getattr(bare, KEEPS_NARROW):
                    logits = wide
                return LossSum(criterion(wide[:, :-1].contiguous(), labels[:, 1:].contiguous()))
            logits = model(**inputs).logits
        return LossSum(criterion(logits, self.targets(labels)))

    def loss_without_logits(self, model: nn.Module, inputs: Mapping[str, Any], labels: Tensor) -> LossSum:
        """Loss of `labels`, one for each row of hidden states, by a function that makes the logits itself."""
        bare = unwrapped(model)
        fused: FusedLoss | None = getattr(bare, FUSED_LOSS, None)
        with hidden_for_logits(bare) as (head, cap):
            hidden = model(**inputs).logits
            flat = hidden.reshape(-1, hidden.shape[-1])
            if fused is not None:
                return LossSum(fused(flat, head.weight, labels.reshape(-1), head.bias, cap))
            return LossSum(chunked_cross_entropy(flat, head, labels.reshape(-1), cap=cap))

    def criterion(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy summed over valid labels."""
        flat = logits.reshape(-1, logits.shape[-1]).float()
        return whole(F.cross_entropy(flat, labels.reshape(-1), ignore_index=IGNORED, reduction="sum"))

    def _keep_apart(self, model: nn.Module, batch: Batch, inputs: dict[str, Any], stack: contextlib.ExitStack) -> None:
        """Add to `inputs` what keeps the documents of a packed batch apart."""
        if BOUNDARIES in batch and takes_offsets(model):
            inputs[OFFSETS], inputs[LONGEST_ARGUMENT] = batch[BOUNDARIES], int(batch[LONGEST])
            inputs["attention_mask"] = batch[DOCUMENTS][:1, None, None, :1]  # unread: transformers makes none then
        else:
            table: Any = model.get_input_embeddings()  # type: ignore[operator]
            inputs["attention_mask"] = masks_by_layer(
                batch[DOCUMENTS], batch["position_ids"], model.config, is_causal=self.is_causal,
                dtype=table.weight.dtype,
            )  # fmt: skip
        offset = position_offset(model.config)
        inputs["position_ids"] = batch["position_ids"] + offset if offset else batch["position_ids"]
        if FIRSTS in batch:
            stack.enter_context(pooled_by_document(backbone_of(model), batch[FIRSTS]))  # type: ignore[arg-type]

    def targets(self, labels: Tensor) -> Tensor:
        """The label that each row of logits predicts, of `labels` (B, T) as a batch has them."""
        return labels

    def count(self, batch: Batch) -> float:
        """Labels in the batch; collation may store the number of valid ones under `count`, on the host."""
        counted: Any = batch.get("count")
        return float(counted.item()) if counted is not None else float(batch["labels"].numel())

    def encoder(self, model: nn.Module) -> nn.Module | None:
        """The backbone under the head."""
        return backbone_of(model)

    def learning_rate_scale(self, parameter_name: str) -> float:
        """The same rate for every parameter."""
        return 1.0


def makes_no_logits(model: nn.Module) -> bool:
    """Whether the loss of `model` is one with its output layer: in chunks, or a fused kernel's."""
    return getattr(model, IN_CHUNKS, False) or getattr(model, FUSED_LOSS, None) is not None


def backbone_of(model: nn.Module) -> nn.Module | None:
    """The module under the head of a transformers model, with adapters or without: peft's own base is the whole."""
    whole: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    return getattr(whole, "base_model", None)


def _model(settings: Settings, head: str, config_fields: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
    if pretrained and is_smollm2(settings.model.name):
        if head != "causal-lm":
            raise NotSupported(
                f"model.name: {settings.model.name} comes out of its wheel as a causal language model; found workload "
                f"{settings.workload!r}. Take causal-lm or preference, or minilm for classification."
            )
        model = load_smollm2(settings)
        for name, value in config_fields.items():
            setattr(model.config, name, value)
        return model
    config = config_of(settings)
    for name, value in config_fields.items():
        setattr(config, name, value)
    weights = first_weights(settings) if pretrained else None
    if pretrained and weights is None and "/" in hub_id(settings.model.name):
        warnings.warn(_why_from_scratch(settings.model.name), stacklevel=2)
    return build_model(config, head, pretrained_from=weights)


def _why_from_scratch(name: str) -> str:
    if Path(name).is_dir() and not any(Path(name).glob("*.safetensors")):
        return (
            f"model.name: the folder {name} has no weights (*.safetensors): training starts from random weights. "
            f"Save the model there with save_pretrained to start from its own."
        )
    return (
        f"model.config: changes the size of {name}, whose weights then fit no more: training starts from random "
        f"weights. Leave the sizes out to start from its own."
    )


def documents_in_row(settings: Settings, length: int) -> int:
    """Documents that have room in a row, by their mean length; one where that is not known."""
    return max(1, round(length / (settings.data.mean_tokens or length)))


def no_tokens(size: int, length: int) -> Tensor:
    """Ids of an example, all zero; (size, length)."""
    return torch.zeros(size, length, dtype=torch.long)
