"""Supervised contrastive loss, its floor, and nothing that depends on the values: it traces on fake tensors.

For an anchor i with positives P(i), itself excluded, over unit vectors z and temperature t:

    L_i = -(1/|P(i)|) * sum over p in P(i) of log( exp(z_i·z_p / t) / sum over a ≠ i of exp(z_i·z_a / t) )

The loss is the mean over the anchors that have a positive, 0 when none has. It cannot fall below the mean of
log|P(i)| over those anchors, since the softmax over the others can give |P(i)| positives at most 1/|P(i)| each. A
reported loss below that floor is a bug in the report.

Source: Khosla et al., NeurIPS 2020, equation 2 (arXiv 2004.11362); t = 0.07 as there.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

TEMPERATURE = 0.07
EXCLUDED = -1e30
"""Similarity of a sample with itself, so that its exponential is 0 in fp32."""


@dataclass(frozen=True)
class ContrastiveLoss:
    """Scalars over the anchors that have a positive; zeros when none has."""

    loss: Tensor
    floor: Tensor
    """Mean of log|P(i)|, which `loss` cannot fall below; carries no gradient."""


def supervised_contrastive(vectors: Tensor, keys: Tensor, temperature: float = TEMPERATURE) -> ContrastiveLoss:
    """Loss of unit `vectors` (B, D) in which samples of equal `keys` (B,) are positives of each other.

    Computed in fp32 whatever autocast says: at t = 0.07 a bf16 similarity would be off by several percent of a nat.
    """
    with torch.autocast(vectors.device.type, enabled=False):
        vectors = vectors.float()
        size = len(keys)
        itself = torch.eye(size, dtype=torch.bool, device=vectors.device)
        similarity = (vectors @ vectors.T / temperature).masked_fill(itself, EXCLUDED)
        log_share = similarity - torch.logsumexp(similarity, dim=1, keepdim=True)
        positive = ((keys[:, None] == keys[None, :]) & ~itself).float()
        number = positive.sum(dim=1)
        has_positive = (number > 0).float()
        per_anchor = -(log_share * positive).sum(dim=1) / number.clamp(min=1)
        anchors = has_positive.sum().clamp(min=1)
        floor = (number.clamp(min=1).log() * has_positive).sum() / anchors
        return ContrastiveLoss((per_anchor * has_positive).sum() / anchors, floor.detach())
