"""The generic workloads: causal, masked and sequence-to-sequence LM, classification of sequences and of tokens.

Each owns its loss: cross-entropy summed in fp32 over valid labels, so that any accumulation split gives one gradient
(trainers that average per micro-batch do not). Batches are right-padded, or packed (`documents.py`). Causal language
models get no padding mask: a token never sees what stands to its right, so padding changes nothing before it, and
attention keeps its fast kernel. `pairs` is in `pairs.py`.
"""

import contextlib
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerun.data.token_data import IGNORED
from forerun.errors import InvalidSettings, NotSupported, nearest
from forerun.models.build import build_model, config_of
from forerun.models.catalogue import hub_id
from forerun.models.first_weights import first_weights
from forerun.models.smollm2 import is_smollm2, load_smollm2
from forerun.settings.schema import Settings
from forerun.step.attention import LONGEST_ARGUMENT, OFFSETS, takes_offsets
from forerun.step.chunked_loss import chunked_cross_entropy, hidden_for_logits, require_chunkable
from forerun.step.documents import (
    BOUNDARIES,
    DOCUMENTS,
    FIRSTS,
    LONGEST,
    block_mask,
    even_boundaries,
    pooled_by_document,
    position_offset,
    require_packable,
)
from forerun.step.fused_kernels import FUSED_LOSS, FusedLoss, require_kernels
from forerun.step.label_losses import LabelLoss
from forerun.step.library_versions import KEEPS_NARROW, SHIFTS_LOGITS, copies_logits, keeps_narrow_logits
from forerun.step.pairs import Embeddings, Pairs
from forerun.step.parallel import unwrapped, whole
from forerun.step.prompt_adapters import PROMPT_TOKENS
from forerun.step.workload import Batch, LossSum

NOT_INPUTS = ("labels", "count", DOCUMENTS, FIRSTS, BOUNDARIES, LONGEST)
IN_CHUNKS = "takes_cross_entropy_in_chunks"
"""Attribute of models whose settings ask for it."""
REJECTED = "rejected_"
"""Prefix of the keys of a batch that belong to the answer that is not wanted."""
LabelKind = Literal["one", "several", "number"]
"""Labels of a sequence: one class, any number of them, or a number to come near to."""


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
            require_packable(model, self.head, settings.batch.sequence_length)
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
        boundaries = even_boundaries(size, length, _documents_in_row(settings, length))
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
            fused: FusedLoss | None = getattr(bare, FUSED_LOSS, None)
            if fused is not None:
                head, cap, _ = stack.enter_context(hidden_for_logits(bare))
                hidden, labels = self.align(model(**inputs).logits, labels)
                flat = hidden.reshape(-1, hidden.shape[-1])
                return LossSum(fused(flat, head.weight, labels.reshape(-1), head.bias, cap))
            if getattr(bare, IN_CHUNKS, False):
                head, cap, factor = stack.enter_context(hidden_for_logits(bare))
                hidden, labels = self.align(model(**inputs).logits, labels)
                flat = hidden.reshape(-1, hidden.shape[-1])
                return LossSum(chunked_cross_entropy(flat, head, labels.reshape(-1), cap=cap, factor=factor))
            if getattr(bare, SHIFTS_LOGITS, False):
                logits = model(**inputs).logits  # lives until the loss is there: it is part of the output
                wide = logits.float()
                if not getattr(bare, KEEPS_NARROW):
                    logits = wide
                return LossSum(self.criterion(wide[:, :-1].contiguous(), labels[:, 1:].contiguous()))
            logits, labels = self.align(model(**inputs).logits, labels)
        return LossSum(self.criterion(logits, labels))

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
            inputs["attention_mask"] = block_mask(batch[DOCUMENTS], is_causal=self.is_causal)
        offset = position_offset(model.config)
        inputs["position_ids"] = batch["position_ids"] + offset if offset else batch["position_ids"]
        if FIRSTS in batch:
            stack.enter_context(pooled_by_document(backbone_of(model), batch[FIRSTS]))  # type: ignore[arg-type]

    def align(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Pair each logit row with the label that it predicts."""
        return logits, labels

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


class CausalLM(HeadWorkload):
    """Predict the next token."""

    name = "causal-lm"
    is_causal = True

    def padded_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Token ids (B, T) and labels (B, T)."""
        return {"input_ids": _tokens(size, length), "labels": _tokens(size, length)}

    def align(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Labels move one to the left; the last has none. Moving labels, not logits, copies no logits."""
        shifted = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
        return logits, shifted


class MaskedLM(HeadWorkload):
    """Predict masked tokens."""

    name = "masked-lm"

    def padded_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Token ids, padding mask and labels, each (B, T)."""
        ids = _tokens(size, length)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": _tokens(size, length)}


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
        ids = _tokens(size, length)
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": self._labels(size)}
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
        documents = _documents_in_row(settings, length)
        batch = super()._packed(batch, settings)
        batch["labels"] = self._labels(size * documents)
        batch[FIRSTS] = torch.zeros(size * documents, dtype=torch.long)
        return batch


class TokenClassification(HeadWorkload):
    """One label per token."""

    name = "token-classification"

    def padded_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Token ids, padding mask and labels, each (B, T)."""
        ids = _tokens(size, length)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": _tokens(size, length)}


class Seq2SeqLM(HeadWorkload):
    """Encode a sequence, decode another; both have `sequence_length` tokens at most."""

    name = "seq2seq-lm"

    def padded_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Encoder ids and mask, decoder ids and labels, each (B, T)."""
        ids = _tokens(size, length)
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "decoder_input_ids": _tokens(size, length),
            "labels": _tokens(size, length),
        }


class Preference(CausalLM):
    """Direct preference optimisation: the chosen answer likelier than the rejected one, beside a reference.

        L = -log sigmoid( beta · [ (log p(chosen) - log q(chosen)) - (log p(rejected) - log q(rejected)) ] )

    with p the model and q the model before training, whose log-probabilities a batch brings (`reference_…`). Both
    answers of a pair run in one batch of twice as many rows.

    Source: Rafailov et al. 2023 (arXiv 2305.18290), equation 7; beta = 0.1 as there.
    """

    name = "preference"
    beta = 0.1

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
        sides = {f"{side}{key}": _tokens(size, length) for side in ("", REJECTED) for key in ("input_ids", "labels")}
        return {**sides, "reference_chosen": torch.zeros(size), "reference_rejected": torch.zeros(size)}

    def log_probabilities(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Log-probability of each chosen and each rejected answer, (B,) both; nats, summed over its tokens."""
        ids = torch.cat([batch["input_ids"], batch[f"{REJECTED}input_ids"]])
        labels = torch.cat([batch["labels"], batch[f"{REJECTED}labels"]])
        logits, labels = self.align(model(input_ids=ids).logits, labels)
        losses = F.cross_entropy(logits.float().transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
        chosen_part, rejected_part = (-losses.sum(dim=1)).chunk(2)
        return chosen_part, rejected_part

    def loss(self, model: nn.Module, batch: Batch) -> LossSum:
        """The loss summed over pairs, and the share of pairs in which the chosen answer has gained more."""
        likely, unlikely = self.log_probabilities(model, batch)
        margin = (likely - batch["reference_chosen"]) - (unlikely - batch["reference_rejected"])
        details = {
            "training_accuracy": (margin > 0).float().mean().detach(),
            "training_margin": (self.beta * margin).mean().detach(),
        }
        return LossSum(-F.logsigmoid(self.beta * margin).sum(), details)

    def count(self, batch: Batch) -> float:
        """Pairs in the batch."""
        return float(len(batch["input_ids"]))


HEADS = (CausalLM(), MaskedLM(), SequenceClassification(), TokenClassification(), Seq2SeqLM())
WORKLOADS: dict[str, HeadWorkload | Pairs] = {
    workload.name: workload for workload in (*HEADS, Preference(), Pairs(), Embeddings())
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
        warnings.warn(
            f"model.config: changes the size of {settings.model.name}, whose weights then fit no more: training starts "
            f"from random weights. Leave the sizes out to start from its own.",
            stacklevel=2,
        )
    return build_model(config, head, pretrained_from=weights)


def _documents_in_row(settings: Settings, length: int) -> int:
    """Documents that have room in a row, by their mean length; one where that is not known."""
    return max(1, round(length / (settings.data.mean_tokens or length)))


def _tokens(size: int, length: int) -> Tensor:
    return torch.zeros(size, length, dtype=torch.long)
