"""Embeddings of pairs or triplets of texts, learned against all other texts of the optimizer step.

    L_i = -log( exp(a_i·b_i / t) / sum over j of exp(a_i·b_j / t) )        summed over i

with unit vectors a and b: mean of the encoder's outputs over the tokens of the text. The negatives of a pair are the
other right-hand sides of the whole optimizer step, however it is split into micro-batches (see `workload.SpansStep`).
Of triplets, the third texts of the whole step are negatives of every pair too. Texts that come again are left out.

Source: van den Oord et al. 2018 (arXiv 1807.03748), equation 4; t = 0.05 as in Gao et al. 2021 (arXiv 2104.08821).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerun.errors import NotSupported
from forerun.models.build import build_model, config_of
from forerun.models.first_weights import first_weights
from forerun.settings.schema import Settings
from forerun.step.workload import Batch, LossSum

TEMPERATURE = 0.05
EXCLUDED = -1e30
"""Similarity of a text that is no negative, so that its exponential is 0 in fp32."""
KEY = "key"
"""End of the keys of a batch that hold a number for each text of a side, equal for equal texts."""
OTHER = "other_"
"""Prefix of the keys of a batch that belong to the right-hand side."""
NEGATIVE = "negative_"
"""Prefix of the keys of a batch that belong to texts that do not belong to the left-hand side."""


class Pairs:
    """Bi-encoder with the other pairs of the step as negatives."""

    name = "pairs"

    def __init__(self, config_fields: Mapping[str, Any] | None = None, *, has_negatives: bool = False):
        """`has_negatives`: batches are of triplets; `config_fields` are set on the model's configuration."""
        self.config_fields = dict(config_fields or {})
        self.sides = ("", OTHER, NEGATIVE) if has_negatives else ("", OTHER)

    def build_model(self, settings: Settings, *, pretrained: bool) -> nn.Module:
        """The bare encoder."""
        if settings.batch.padding == "packed":
            raise NotSupported("batch.padding: pairs are not packed by this version. Set it to bucketed or longest.")
        config = config_of(settings)
        for name, value in self.config_fields.items():
            setattr(config, name, value)
        model = build_model(config, "encoder", pretrained_from=first_weights(settings) if pretrained else None)
        if getattr(model, "pooler", None) is not None:
            model.pooler = None  # type: ignore[assignment]  (reads one token; it would get no gradient)
        return model

    def example_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Token ids and padding masks of all sides, each (B, T)."""
        batch: Batch = {}
        for side in self.sides:
            batch[f"{side}input_ids"] = torch.zeros(size, length, dtype=torch.long)
            batch[f"{side}attention_mask"] = torch.ones(size, length, dtype=torch.long)
        return batch

    def outputs(self, model: nn.Module, batch: Batch) -> tuple[Tensor, ...]:
        """Unit vectors of the left and the right-hand sides and of negatives, (B, D) each."""
        sides = [side for side in self.sides if f"{side}input_ids" in batch]
        return tuple(pooled(model, batch[f"{side}input_ids"], batch[f"{side}attention_mask"]) for side in sides)

    def loss_of(self, outputs: tuple[Tensor, ...], batches: Sequence[Batch]) -> LossSum:
        """The loss summed over pairs."""
        left, *right = outputs
        candidates = torch.cat(right) if len(right) > 1 else right[0]
        similarity = left.float() @ candidates.float().T / TEMPERATURE
        excluded = self.excluded(batches)
        if excluded is not None:
            similarity = similarity.masked_fill(excluded, EXCLUDED)
        return LossSum(F.cross_entropy(similarity, torch.arange(len(left), device=left.device), reduction="sum"))

    def excluded(self, batches: Sequence[Batch]) -> Tensor | None:
        """Candidates (B, C) that are no negatives of a pair; None where every other one is."""
        return None

    def loss(self, model: nn.Module, batch: Batch) -> LossSum:
        """The loss of one micro-batch that is a whole step."""
        return self.loss_of(self.outputs(model, batch), [batch])

    def count(self, batch: Batch) -> float:
        """Pairs in the batch."""
        return float(len(batch["input_ids"]))

    def encoder(self, model: nn.Module) -> nn.Module | None:
        """There is no head to train alone."""
        return None

    def learning_rate_scale(self, parameter_name: str) -> float:
        """The same rate for every parameter."""
        return 1.0


class Embeddings(Pairs):
    """The same for own data: pairs, or triplets, in which texts may come again.

    A right-hand side with the same text, or of a pair with the same left-hand side, is no negative of a pair.
    """

    name = "embedding"

    def example_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """As of pairs, and what tells texts apart, (B,) each side."""
        keys = {f"{side}{KEY}": torch.arange(size) + size * n for n, side in enumerate(self.sides)}
        return {**super().example_batch(settings, size, length), **keys}

    def excluded(self, batches: Sequence[Batch]) -> Tensor | None:
        """Which candidates are no negatives of which pair; nothing where batches do not tell texts apart."""
        if any(f"{side}{KEY}" not in batch for batch in batches for side in self.sides) or not batches:
            return None
        left, right, *negatives = (torch.cat([batch[f"{side}{KEY}"] for batch in batches]) for side in self.sides)
        candidates = torch.cat([right, *negatives])
        equal = right[:, None] == candidates[None, :]
        equal[:, : len(right)] |= left[:, None] == left[None, :]
        return equal.fill_diagonal_(False)


def pooled(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """Unit vectors (B, D): mean of the encoder's outputs over the tokens of each text."""
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    weight = mask.unsqueeze(-1).to(hidden.dtype)
    return F.normalize((hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1), dim=-1)
