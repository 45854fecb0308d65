"""The generic workloads: causal LM, masked LM, sequence-to-sequence LM and sequence classification.

Each owns its loss: cross-entropy summed in fp32 over valid labels, so that any accumulation split gives one gradient
(trainers that average per micro-batch do not). Batches are right-padded. Causal language models get no padding mask: a
token never sees what stands to its right, so padding changes nothing before it, and attention keeps its fast kernel.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerun.errors import InvalidSettings, nearest
from forerun.models.build import build_model, maximum_length
from forerun.models.catalogue import model_config
from forerun.settings.schema import Settings
from forerun.step.workload import Batch, LossSum

IGNORED = -100
"""Label of positions that do not count, as in PyTorch's cross-entropy."""


class HeadWorkload:
    """A Hugging Face model with one head; subclasses say what a batch holds and which labels its logits answer."""

    name: str

    def build_model(self, settings: Settings, *, pretrained: bool) -> nn.Module:
        """The architecture with this workload's head."""
        config = model_config(settings.model.name, settings.model.config, settings.model.attention)
        limit = maximum_length(config)
        if limit is not None and settings.batch.sequence_length > limit:
            raise InvalidSettings(
                f"batch.sequence_length: {settings.model.name} has positions for {limit} tokens; found "
                f"{settings.batch.sequence_length}. Set it to {limit} or less, or choose a longer model."
            )
        source = settings.model.name if pretrained else None
        return build_model(config, self.name, pretrained_from=source)

    def example_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Token ids, and what else the head wants; (size, length)."""
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Batch) -> LossSum:
        """Cross-entropy summed over valid labels."""
        inputs = {key: value for key, value in batch.items() if key not in ("labels", "count")}
        logits, labels = self.align(model(**inputs).logits, batch["labels"])
        flat = logits.reshape(-1, logits.shape[-1]).float()
        return LossSum(F.cross_entropy(flat, labels.reshape(-1), ignore_index=IGNORED, reduction="sum"))

    def align(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Pair each logit row with the label that it predicts."""
        return logits, labels

    def count(self, batch: Batch) -> float:
        """Labels in the batch; collation may store the number of valid ones under `count`, on the host."""
        counted: Any = batch.get("count")
        return float(counted.item()) if counted is not None else float(batch["labels"].numel())

    def encoder(self, model: nn.Module) -> nn.Module | None:
        """The backbone under the head."""
        return getattr(model, "base_model", None)

    def learning_rate_scale(self, parameter_name: str) -> float:
        """One rate for all."""
        return 1.0


class CausalLM(HeadWorkload):
    """Predict the next token."""

    name = "causal-lm"

    def example_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Token ids (B, T) and labels (B, T)."""
        return {"input_ids": _tokens(size, length), "labels": _tokens(size, length)}

    def align(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Labels move one to the left; the last has none. Moving labels, not logits, copies no logits."""
        shifted = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
        return logits, shifted


class MaskedLM(HeadWorkload):
    """Predict masked tokens."""

    name = "masked-lm"

    def example_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Token ids, padding mask and labels, each (B, T)."""
        ids = _tokens(size, length)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": _tokens(size, length)}


class SequenceClassification(HeadWorkload):
    """One label per sequence."""

    name = "sequence-classification"

    def example_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Token ids and padding mask (B, T), labels (B,)."""
        ids = _tokens(size, length)
        labels = torch.zeros(size, dtype=torch.long)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


class Seq2SeqLM(HeadWorkload):
    """Encode a sequence, decode another; both have `sequence_length` tokens at most."""

    name = "seq2seq-lm"

    def example_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Encoder ids and mask, decoder ids and labels, each (B, T)."""
        ids = _tokens(size, length)
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "decoder_input_ids": _tokens(size, length),
            "labels": _tokens(size, length),
        }


GENERIC: dict[str, HeadWorkload] = {
    workload.name: workload for workload in (CausalLM(), MaskedLM(), SequenceClassification(), Seq2SeqLM())
}


def generic_workload(name: str) -> HeadWorkload:
    """The generic workload of that name.

    Raises:
        InvalidSettings: there is none.
    """
    if name not in GENERIC:
        raise InvalidSettings(
            f"workload: no workload {name!r}. Nearest: {nearest(name, list(GENERIC))}, or a recipe's name."
        )
    return GENERIC[name]


def _tokens(size: int, length: int) -> Tensor:
    return torch.zeros(size, length, dtype=torch.long)
