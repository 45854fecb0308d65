"""The generic workloads: causal, masked and sequence-to-sequence LM, classification of sequences and of tokens.

Each owns its loss: cross-entropy summed in fp32 over valid labels, so that any accumulation split gives one gradient
(trainers that average per micro-batch do not). Batches are right-padded, or packed (`documents.py`). Causal language
models get no padding mask: a token never sees what stands to its right, so padding changes nothing before it, and
attention keeps its fast kernel. `pairs` is in `pairs.py`, images and sound are in `media.py`.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerun.data.token_data import IGNORED
from forerun.errors import InvalidSettings, NotSupported, nearest
from forerun.settings.preference import PreferenceSettings
from forerun.settings.schema import Settings
from forerun.step.context_parallel import shared_sequence
from forerun.step.denoising import TextToImage
from forerun.step.documents import FIRSTS
from forerun.step.head_workload import HeadWorkload, documents_in_row, makes_no_logits, no_tokens
from forerun.step.label_losses import LabelLoss
from forerun.step.media import MEDIA_WORKLOADS
from forerun.step.page_inputs import page_inputs
from forerun.step.pairs import Embeddings, Pairs
from forerun.step.parallel import unwrapped
from forerun.step.preference_loss import preference_loss
from forerun.step.workload import Batch, LossSum

REJECTED = "rejected_"
"""Prefix of the keys of a batch that belong to the answer that is not wanted."""
LabelKind = Literal["one", "several", "number"]
"""Labels of a sequence: one class, any number of them, or a number to come near to."""


class CausalLM(HeadWorkload):
    """Predict the next token."""

    name = "causal-lm"
    is_causal = True

    def padded_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Token ids (B, T) and labels (B, T)."""
        return {"input_ids": no_tokens(size, length), "labels": no_tokens(size, length)}

    def loss(self, model: nn.Module, batch: Batch) -> LossSum:
        """Loss summed over valid labels, of this rank's pieces where sequences are split."""
        shared = shared_sequence(unwrapped(model))
        if shared is None:
            return super().loss(model, batch)
        inputs = {**shared.inputs(batch["input_ids"]), "use_cache": False}
        if makes_no_logits(unwrapped(model)):
            return self.loss_without_logits(model, inputs, shared.pieces(self.targets(batch["labels"])))
        logits = model(**inputs).logits
        return LossSum(self.criterion(logits, shared.pieces(self.targets(batch["labels"]))))

    def targets(self, labels: Tensor) -> Tensor:
        """Labels move one to the left; the last has none. Moving labels, not logits, copies no logits."""
        return F.pad(labels[:, 1:], (0, 1), value=IGNORED)


class MaskedLM(HeadWorkload):
    """Predict masked tokens."""

    name = "masked-lm"

    def padded_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Token ids, padding mask and labels, each (B, T)."""
        ids = no_tokens(size, length)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": no_tokens(size, length)}


class SequenceClassification(HeadWorkload):
    """One label per sequence, several (binary cross-entropy, mean over labels), or a number (squared error)."""

    name = "sequence-classification"

    def __init__(
        self,
        config_fields: Mapping[str, Any] | None = None,
        label_kind: LabelKind = "one",
        *,
        is_paired: bool = False,
    ):
        """`is_paired`: batches say which of two texts a token belongs to."""
        super().__init__(config_fields)
        self.label_kind: LabelKind = label_kind
        self.is_paired = is_paired

    def padded_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Token ids and padding mask (B, T), labels (B,) or one number for each label (B, C)."""
        ids = no_tokens(size, length)
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": self._labels(size)}
        batch |= page_inputs(settings, size, length)
        return {**batch, "token_type_ids": torch.zeros_like(ids)} if self.is_paired else batch

    def criterion(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Loss summed over samples."""
        if self.label_kind == "number":
            return F.mse_loss(logits.squeeze(-1).float(), labels.float(), reduction="sum")
        if self.label_kind == "several":
            return LabelLoss(is_multi_label=True)(logits, labels.float()).sum()
        return super().criterion(logits, labels)

    def count(self, batch: Batch) -> float:
        """Samples in the batch."""
        return float(len(batch["labels"]))

    def _labels(self, size: int) -> Tensor:
        if self.label_kind == "several":
            return torch.zeros(size, len(self.config_fields["id2label"]))
        return torch.zeros(size, dtype=torch.float32 if self.label_kind == "number" else torch.long)

    def _packed(self, batch: Batch, settings: Settings) -> Batch:
        """Rows with as many documents as have room in them, and the place of the first token of each."""
        size, length = batch["input_ids"].shape
        documents = documents_in_row(settings, length)
        batch = super()._packed(batch, settings)
        batch["labels"] = self._labels(size * documents)
        batch[FIRSTS] = torch.zeros(size * documents, dtype=torch.long)
        return batch


class TokenClassification(HeadWorkload):
    """One label per token."""

    name = "token-classification"

    def padded_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Token ids, padding mask and labels, each (B, T)."""
        ids = no_tokens(size, length)
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": no_tokens(size, length)}
        return {**batch, **page_inputs(settings, size, length)}


class Seq2SeqLM(HeadWorkload):
    """Encode a sequence, decode another; both have `sequence_length` tokens at most."""

    name = "seq2seq-lm"

    def padded_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Encoder ids and mask, decoder ids and labels, each (B, T)."""
        ids = no_tokens(size, length)
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "decoder_input_ids": no_tokens(size, length),
            "labels": no_tokens(size, length),
        }


class Preference(CausalLM):
    """Direct preference optimisation: the chosen answer likelier than the rejected one, beside a reference.

    The reference is the model before training, whose log-probabilities a batch brings (`reference_…`). Both answers of
    a pair run in one batch of twice as many rows. Losses: `preference_loss.py`.
    """

    name = "preference"
    beside = REJECTED
    """Prefix of the keys of the second answer."""

    def __init__(
        self,
        config_fields: Mapping[str, Any] | None = None,
        objective: PreferenceSettings = PreferenceSettings(),  # noqa: B008
    ):
        """`objective`: the loss and its numbers."""
        super().__init__(config_fields)
        self.objective = objective

    @property
    def head(self) -> str:
        """That of a causal language model."""
        return "causal-lm"

    def build_model(self, settings: Settings, *, pretrained: bool) -> nn.Module:
        """The causal language model.

        Raises:
            NotSupported: pairs would have to be packed, or the loss never to have all logits.
        """
        for setting, value, usual in (
            ("batch.padding", settings.batch.padding == "packed", "bucketed"),
            ("cross_entropy", settings.cross_entropy == "chunked", "full"),
            ("model.kernels", settings.model.kernels != "none", "none"),
        ):
            if value:
                raise NotSupported(f"{setting}: preference needs the logits of whole answers. Set it to {usual}.")
        return super().build_model(settings, pretrained=pretrained)

    def padded_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Ids and labels of both answers (B, T), and their log-probabilities under the reference (B,)."""
        sides = {f"{side}{key}": no_tokens(size, length) for side in ("", REJECTED) for key in ("input_ids", "labels")}
        return {**sides, "reference_chosen": torch.zeros(size), "reference_rejected": torch.zeros(size)}

    def log_probabilities(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Log-probability of each answer and of the one beside it, (B,) both; nats, summed over its tokens."""
        ids = torch.cat([batch["input_ids"], batch[f"{self.beside}input_ids"]])
        labels = torch.cat([batch["labels"], batch[f"{self.beside}labels"]])
        first, second = self.answer_log_probabilities(model, ids, labels).chunk(2)
        return first, second

    def answer_log_probabilities(self, model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
        """Log-probability (B,) of the answers that `labels` (B, T) mark in `ids` (B, T); nats."""
        logits = model(input_ids=ids).logits
        targets = self.targets(labels)
        losses = F.cross_entropy(logits.float().transpose(1, 2), targets, ignore_index=IGNORED, reduction="none")
        return -losses.sum(dim=1)

    def loss(self, model: nn.Module, batch: Batch) -> LossSum:
        """The loss summed over pairs, and the share of pairs in which the chosen answer has gained more."""
        likely, unlikely = self.log_probabilities(model, batch)
        gains = likely - batch["reference_chosen"], unlikely - batch["reference_rejected"]
        margin = gains[0] - gains[1]
        details = {
            "training_accuracy": (margin > 0).float().mean().detach(),
            "training_margin": (self.objective.beta * margin).mean().detach(),
        }
        tokens = None
        if self.objective.loss == "ipo":
            better, worse = ((batch[f"{side}labels"][:, 1:] != IGNORED).sum(dim=1) for side in ("", REJECTED))
            tokens = better, worse
        return LossSum(preference_loss(gains, self.objective, tokens).sum(), details)

    def count(self, batch: Batch) -> float:
        """Pairs in the batch."""
        return float(len(batch["input_ids"]))


HEADS = (CausalLM(), MaskedLM(), SequenceClassification(), TokenClassification(), Seq2SeqLM())
WORKLOADS: dict[str, HeadWorkload | Pairs] = {
    workload.name: workload
    for workload in (*HEADS, Preference(), Pairs(), Embeddings(), *MEDIA_WORKLOADS, TextToImage())
}  # fmt: skip
"""The generic workloads; `generic.py` has their names alone."""


def generic_workload(name: str) -> HeadWorkload | Pairs:
    """The generic workload of that name.

    Raises:
        InvalidSettings: there is none.
    """
    if name not in WORKLOADS:
        raise InvalidSettings(
            f"workload: no workload {name!r}. Nearest: {nearest(name, list(WORKLOADS))}, or a recipe's name."
        )
    return WORKLOADS[name]
