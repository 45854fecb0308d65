"""An encoder with two heads: who wrote the file, and a vector in which files for one task lie close.

The heads are those of the specification: classification d → d/2 → 2, embedding d → d → 128, normalised to length 1. The
encoder is anything that pools ids to (B, d); `PooledTransformer` makes one of a Hugging Face encoder by taking the mean
over its tokens.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from forerun.errors import NotSupported

EMBEDDING_WIDTH = 128
CLASSES = 2
"""Number of labels: human is 0, AI is 1."""


@dataclass(frozen=True)
class DetectorOutput:
    """Output of both heads for one batch: logits (B, 2) and unit vectors (B, 128)."""

    logits: Tensor
    vectors: Tensor


class PooledTransformer(nn.Module):
    """A Hugging Face encoder, averaged over its tokens; its own pooler, which nothing would train, is dropped."""

    def __init__(self, backbone: nn.Module):
        super().__init__()
        # transformers/models/bert/modeling_bert.py (5.23): forward skips a pooler that is None. Left in, it would get
        # no gradient, and DDP fails on such parameters (find_unused_parameters is off).
        if getattr(backbone, "pooler", None) is not None:
            backbone.pooler = None  # type: ignore[assignment]
        self.backbone = backbone

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Mean hidden states (B, d)."""
        hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        inside = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * inside).sum(dim=1) / inside.sum(dim=1).clamp(min=1)

    def gradient_checkpointing_enable(self, **kwargs: object) -> None:
        """Recompute the backbone's blocks in the backward pass."""
        self.backbone.gradient_checkpointing_enable(**kwargs)  # type: ignore[operator]


class Detector(nn.Module):
    """Encoder, classification head and embedding head."""

    def __init__(self, encoder: nn.Module, width: int, dropout: float = 0.1):
        """Heads on an `encoder` whose output is `width` wide."""
        super().__init__()
        self.encoder = encoder
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(width, width // 2),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(width // 2, CLASSES),
        )
        self.embedding_head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, EMBEDDING_WIDTH))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> DetectorOutput:
        """Both heads on ids (B, T) and mask (B, T)."""
        pooled = self.encoder(input_ids, attention_mask)
        return DetectorOutput(self.classifier(pooled), F.normalize(self.embedding_head(pooled), dim=1))

    def gradient_checkpointing_enable(self, **kwargs: object) -> None:
        """Recompute the encoder's blocks in the backward pass.

        Raises:
            NotSupported: the encoder cannot.
        """
        if not isinstance(self.encoder, PooledTransformer):
            raise NotSupported(
                f"activation_checkpointing: {type(self.encoder).__name__} has no blocks to recompute. Set it to none."
            )
        self.encoder.gradient_checkpointing_enable(**kwargs)
