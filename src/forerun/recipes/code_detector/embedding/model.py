"""The third tier's embedding of a source file: a head trained by supervised contrast on features that do not learn.

Parts of the input (hashed vocabulary, hashed structure, vectors of a pretrained encoder) are weighted by how rare each
place is, brought to length 1, and projected together; a residual layer, which starts as nothing, follows. Before any
training the projection is random, which keeps cosines to about 1 / sqrt(width) (Johnson and Lindenstrauss 1984): it
starts from the cosine of the weighted features, not from nothing.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FileEmbedding(nn.Module):
    """Features (B, sum of `parts`) to unit vectors (B, `width`)."""

    rarity: Tensor

    def __init__(self, parts: Sequence[int], rarity: Tensor | None = None, width: int = 512, dropout: float = 0.2):
        """`rarity` (sum of `parts`,) weighs the features, see `rarity_of`; without it all weigh alike."""
        super().__init__()
        self.parts = list(parts)
        self.register_buffer("rarity", torch.ones(sum(parts)) if rarity is None else rarity)
        self.projection = nn.Linear(sum(parts), width, bias=False)
        nn.init.normal_(self.projection.weight, std=1 / math.sqrt(width))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        last = self.head[-1]
        assert isinstance(last, nn.Linear)
        # Zeros: the residual layer adds nothing at first, so training starts from the cosine of the features.
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, features: Tensor) -> Tensor:
        """Unit vectors; in training some of the features of each file are dropped."""
        pieces = torch.split(features * self.rarity, self.parts, dim=1)
        whole = torch.cat([F.normalize(piece, dim=1) for piece in pieces], dim=1)
        projected = self.projection(self.dropout(whole))
        return F.normalize(projected + self.head(projected), dim=1)


def rarity_of(features: Tensor) -> Tensor:
    """log(rows / (1 + rows that have it)), at least 0, of each column of training `features` (rows, columns)."""
    return torch.log(len(features) / (1 + (features != 0).sum(dim=0).float())).clamp(min=0)
