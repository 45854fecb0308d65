"""The third tier's embedding of a source file: a head trained by supervised contrast on features that do not learn.

Parts of the input (hashed vocabulary, hashed structure, vectors of a pretrained encoder) are each projected, added,
and brought to a unit vector. Files of one task should lie close; what it learns is which parts say so.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FileEmbedding(nn.Module):
    """Features (B, sum of `parts`) to unit vectors (B, `width`)."""

    def __init__(self, parts: Sequence[int], hidden: int = 384, width: int = 128, dropout: float = 0.2):
        super().__init__()
        self.parts = list(parts)
        self.projections = nn.ModuleList(nn.Linear(size, hidden) for size in parts)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Sequential(nn.LayerNorm(hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, width))

    def forward(self, features: Tensor) -> Tensor:
        """Unit vectors; in training some of the features of each file are dropped."""
        pieces = torch.split(features, self.parts, dim=1)
        projected = [layer(self.dropout(piece)) for layer, piece in zip(self.projections, pieces, strict=True)]
        return F.normalize(self.head(torch.stack(projected).sum(dim=0)), dim=1)
