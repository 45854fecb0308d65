"""How good is a language model? Loss per token, perplexities, bits per byte, and what tables of counts reach.

Perplexity per token depends on the tokenizer: exp(loss). Word perplexity exp(total loss / words) and bits per byte
total loss / (bytes · ln 2) do not, and compare between tokenizers.

The tables are the baselines that a model must beat: `unigram` with one count added, `bigram` with absolute discounting
(0.75, Ney, Essen and Kneser 1994) backed off to how many tokens each follows (Kneser-Ney).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from forerun.data.token_data import IGNORED, Batch
from forerun.settings.schema import Precision
from forerun.step.precision import POLICIES
from forerun.train.recovery import in_pieces

DISCOUNT = 0.75
Ids = NDArray[np.int32]
CountTable = Callable[[Ids], NDArray[np.float64]]
"""Nats of each target of held-out rows or streams."""


@dataclass(frozen=True)
class LanguageScore:
    """Loss over held-out targets."""

    total: float
    """Nats over all targets."""
    targets: int
    is_right: NDArray[np.bool_]
    """Whether the likeliest token is the target, for all targets in order."""

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.total / self.targets

    @property
    def perplexity(self) -> float:
        """Perplexity per token, e to the loss."""
        return math.exp(min(self.loss, 700.0))

    def metrics(self, words: int | None = None, bytes: int | None = None) -> dict[str, float]:
        """Every usual figure; those of words and bytes where the scored text has them."""
        figures = {"held_out_loss": self.loss, "token_perplexity": self.perplexity}
        figures["accuracy"] = float(self.is_right.mean())
        if words:
            figures["word_perplexity"] = math.exp(min(self.total / words, 700.0))
        if bytes:
            figures["bits_per_byte"] = self.total / (bytes * math.log(2))
        return figures


def score_language(model: nn.Module, batches: Iterable[Batch], precision: Precision = "fp32") -> LanguageScore:
    """Score batches of `input_ids` and `labels` on the model's device; the training mode is put back after."""
    device, was_training = next(model.parameters()).device, model.training
    total, right = 0.0, []
    model.eval()
    with torch.no_grad(), POLICIES[precision].autocast(device.type):
        for batch in batches:
            for loss, hits in in_pieces(lambda part: _score(model, part, device), batch):
                total += loss
                right.append(hits)
    model.train(was_training)
    return LanguageScore(total, sum(map(len, right)), np.concatenate(right))


def _score(model: nn.Module, batch: Batch, device: torch.device) -> tuple[float, NDArray[np.bool_]]:
    labels = batch["labels"].to(device)
    output = model(batch["input_ids"].to(device)).logits
    logits: Tensor = model.head(output) if getattr(model, "returns_states", False) else output  # type: ignore[operator]
    counts = labels != IGNORED
    flat, target = logits[counts].float(), labels[counts]
    losses = nn.functional.cross_entropy(flat, target, reduction="none").double()
    return float(losses.sum()), (flat.argmax(dim=-1) == target).cpu().numpy()


def unigram_loss(train: Ids, held_out: Ids, vocabulary: int) -> float:
    """Nats per target of a table of token counts; arrays of token rows or streams, targets are all but the first."""
    return float(unigram_table(train, vocabulary)(held_out).mean())


def bigram_loss(train: Ids, held_out: Ids, vocabulary: int) -> float:
    """Nats per target of a table of token pairs, discounted and backed off."""
    return float(bigram_table(train, vocabulary)(held_out).mean())


def unigram_table(train: Ids, vocabulary: int) -> CountTable:
    """Nats of each target by its count in `train`."""
    counts = np.bincount(_targets(train), minlength=vocabulary) + 1.0
    nats = -np.log(counts / counts.sum())
    return lambda held_out: nats[_targets(held_out)]


def bigram_table(train: Ids, vocabulary: int) -> CountTable:
    """Nats of each target by the pairs of `train`."""
    bigrams, counts = np.unique(_pairs(train, vocabulary), return_counts=True)
    before, after = bigrams // vocabulary, bigrams % vocabulary
    totals = np.bincount(before, weights=counts, minlength=vocabulary)
    kinds = np.bincount(before, minlength=vocabulary)
    continuations = np.bincount(after, minlength=vocabulary) + 1.0
    below = continuations / continuations.sum()

    def nats(held_out: Ids) -> NDArray[np.float64]:
        targets = _pairs(held_out, vocabulary)
        place = np.searchsorted(bigrams, targets).clip(max=len(bigrams) - 1)
        target_counts = np.where(bigrams[place] == targets, counts[place], 0)
        first, second = targets // vocabulary, targets % vocabulary
        whole = np.maximum(totals[first], 1)
        rest = np.where(totals[first] > 0, DISCOUNT * kinds[first] / whole, 1.0)
        return -np.log(np.maximum(target_counts - DISCOUNT, 0) / whole + rest * below[second])

    return nats


def _pairs(ids: Ids, vocabulary: int) -> NDArray[np.int64]:
    rows = np.atleast_2d(ids).astype(np.int64)
    return (rows[:, :-1] * vocabulary + rows[:, 1:]).ravel()


def _targets(ids: Ids) -> Ids:
    return np.atleast_2d(ids)[:, 1:].ravel()
