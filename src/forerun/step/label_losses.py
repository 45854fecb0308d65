"""Losses of classification, one value a sample: cross-entropy, focal, class-balanced, asymmetric; smoothing in all.

Targets are shares of labels (B, C), so that mixed samples need nothing special. With one label a sample the shares sum
to 1 and probabilities are a softmax; with several each label is its own question, its loss the mean over labels.

- focal: (1 - p)^gamma · cross-entropy (Lin et al. 2017, arXiv 1708.02002).
- class-balanced: weights (1 - beta) / (1 - beta^n) of a label with n samples (Cui et al. 2019, arXiv 1901.05555),
  scaled so that their mean over the training samples is 1.
- asymmetric (Ridnik et al. 2021, arXiv 2009.14119), several labels only: negatives are focused by `gamma`, and those
  whose probability is below `margin` count nothing; positives are not focused.
- label smoothing: 1 - s of the target and s spread evenly over the labels (over yes and no where there are several).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

LossName = Literal["cross-entropy", "focal", "class-balanced", "asymmetric"]


@dataclass(frozen=True)
class LabelLoss:
    """Name and constants of a classification loss; called with logits and targets."""

    name: LossName = "cross-entropy"
    is_multi_label: bool = False
    smoothing: float = 0.0
    gamma: float = 2.0
    margin: float = 0.05
    weights: tuple[float, ...] = ()
    """Weight of each label, for `class-balanced`."""

    def targets(self, labels: Tensor, classes: int) -> Tensor:
        """Shares (B, C) in fp32 of class numbers (B,), or of zeros and ones (B, C) as they are."""
        return labels.float() if labels.ndim == 2 else F.one_hot(labels, classes).float()

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Loss of each sample (B,), from logits and targets (B, C)."""
        logits = logits.float()
        return self._several(logits, targets) if self.is_multi_label else self._single(logits, targets)

    def _single(self, logits: Tensor, targets: Tensor) -> Tensor:
        smooth = targets * (1 - self.smoothing) + self.smoothing / logits.shape[1]
        logs = logits.log_softmax(dim=1)
        terms = -smooth * logs
        if self.name == "focal":
            terms = terms * (1 - logs.exp()).clamp(min=0) ** self.gamma
        if self.name == "class-balanced":
            terms = terms * (targets @ self._weights(logits)).unsqueeze(1)
        return terms.sum(dim=1)

    def _several(self, logits: Tensor, targets: Tensor) -> Tensor:
        smooth = targets * (1 - self.smoothing) + self.smoothing / 2
        yes, no = F.logsigmoid(logits), F.logsigmoid(-logits)
        if self.name == "asymmetric":
            chance = (logits.sigmoid() - self.margin).clamp(min=0)
            no = chance**self.gamma * (1 - chance).clamp(min=torch.finfo(logits.dtype).tiny).log()
        elif self.name == "focal":
            yes, no = yes * no.exp() ** self.gamma, no * yes.exp() ** self.gamma
        terms = -(smooth * yes + (1 - smooth) * no)
        if self.name == "class-balanced":
            terms = terms * (1 + targets * (self._weights(logits) - 1))
        return terms.mean(dim=1)

    def _weights(self, like: Tensor) -> Tensor:
        return torch.tensor(self.weights, dtype=like.dtype, device=like.device)


def balanced_weights(counts: Sequence[int], beta: float) -> tuple[float, ...]:
    """Weights of labels that occur `counts` times; their mean over the samples is 1."""
    raw = [(1 - beta) / (1 - beta ** max(1, count)) for count in counts]
    mean = sum(weight * count for weight, count in zip(raw, counts, strict=True)) / max(1, sum(counts))
    return tuple(weight / mean for weight in raw)


def symmetric_divergence(first: Tensor, second: Tensor, *, is_multi_label: bool) -> Tensor:
    """Mean of both Kullback-Leibler divergences between two answers (B, C) to the same samples; nats, (B,)."""
    if is_multi_label:
        both = [torch.stack([F.logsigmoid(x), F.logsigmoid(-x)], dim=-1) for x in (first.float(), second.float())]
        one, other = both
        gap = ((one.exp() - other.exp()) * (one - other)).sum(dim=-1).mean(dim=1)
    else:
        one, other = first.float().log_softmax(dim=1), second.float().log_softmax(dim=1)
        gap = ((one.exp() - other.exp()) * (one - other)).sum(dim=1)
    return gap / 2
