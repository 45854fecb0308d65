"""A small encoder of source code, trained from scratch: hashed token n-grams beside a short transformer.

Two readings of the same token ids (B, T), 0 being padding:

- *n-grams*: every run of 1, 2, … `orders` tokens is hashed into one of `buckets` rows of an embedding table; the
  rows are summed over the file and divided by the square root of their number. One gather, no matrix product: it learns
  within seconds which short idioms and layouts each kind of author uses (as fastText, Joulin et al. 2017, arXiv
  1607.01759).
- *transformer*: `layers` pre-norm blocks of a depthwise convolution over `kernel` neighbours, attention and a
  feed-forward, `width` wide, with learned positions; mean and maximum over the tokens.

The output is their concatenation, (B, `output_width`). All hashing is integer arithmetic on the ids inside `forward`,
so a batch holds nothing but ids and mask, and the model traces on fake tensors.

**Not covered:** hash collisions are accepted: with 65,536 buckets the shipped rows' frequent n-grams share some.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerun.errors import InvalidSettings, nearest

PAD_ID = 0
HASH_MODULUS = 2**31 - 1
HASH_FACTOR, TOKEN_FACTOR, ORDER_STEP = 1_000_003, 7919, 31
"""Primes of a rolling hash; products stay below 2**63 for ids below 2**31."""
MASKED = -1e4
"""Below any normalised activation, and finite in bf16 and fp16."""


@dataclass(frozen=True, kw_only=True)
class CodeEncoderConfig:
    """Sizes of the encoder; the defaults are those that scored best in the demo's minutes (docs/log.md)."""

    vocabulary_size: int = 8000
    orders: int = 3
    """Longest n-gram, in tokens."""
    buckets: int = 2**16
    ngram_width: int = 32
    width: int = 96
    layers: int = 1
    heads: int = 4
    kernel: int = 5
    """Neighbours of the depthwise convolution; odd."""
    feed_forward: int = 192
    max_positions: int = 1024
    dropout: float = 0.2
    """Inside the encoder."""
    head_dropout: float = 0.4
    """In the classification head."""

    @classmethod
    def from_overrides(cls, overrides: dict[str, Any]) -> "CodeEncoderConfig":
        """The defaults with `overrides`.

        Raises:
            InvalidSettings: an unknown field, or sizes that do not go together.
        """
        field_names = [field.name for field in dataclasses.fields(cls)]
        for name in overrides:
            if name not in field_names:
                raise InvalidSettings(
                    f"model.config.{name}: not a field of code-encoder. Nearest: {nearest(name, field_names)}."
                )
        config = cls(**overrides)
        if config.width % config.heads or config.kernel % 2 == 0 or config.orders < 1 or config.buckets < 2:
            raise InvalidSettings(
                "model.config: code-encoder needs width divisible by heads, an odd kernel, orders of at least 1 and "
                f"buckets of at least 2; found width={config.width}, heads={config.heads}, kernel={config.kernel}, "
                f"orders={config.orders}, buckets={config.buckets}."
            )
        return config

    @property
    def output_width(self) -> int:
        """Width of the pooled output."""
        return self.orders * self.ngram_width + 2 * self.width


class NgramBag(nn.Module):
    """Sums of hashed n-gram embeddings, one part of the output per order."""

    def __init__(self, config: CodeEncoderConfig):
        super().__init__()
        self.orders, self.buckets = config.orders, config.buckets
        self.table = nn.Embedding(config.buckets, config.ngram_width, padding_idx=PAD_ID)
        nn.init.normal_(self.table.weight, std=0.1)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Pooled embeddings (B, orders * ngram_width) of ids (B, T) where mask (B, T) is true."""
        hashed, parts = ids, []
        for order in range(1, self.orders + 1):
            if order > 1:
                last = ids[:, order - 1 :]
                hashed = (hashed[:, :-1] * HASH_FACTOR + last * TOKEN_FACTOR + order * ORDER_STEP) % HASH_MODULUS
            valid = mask[:, order - 1 :]
            rows = torch.where(valid, hashed % (self.buckets - 1) + 1, PAD_ID)
            summed = F.embedding_bag(rows, self.table.weight, mode="sum", padding_idx=PAD_ID)
            parts.append(summed / valid.sum(dim=1, keepdim=True).clamp(min=1).sqrt())
        return torch.cat(parts, dim=1)


class EncoderBlock(nn.Module):
    """Depthwise convolution and attention, then a feed-forward, both pre-norm and residual."""

    def __init__(self, config: CodeEncoderConfig):
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(width)
        self.neighbours = nn.Conv1d(width, width, config.kernel, padding=config.kernel // 2, groups=width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_output = nn.Linear(width, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, config.feed_forward), nn.GELU(), nn.Linear(config.feed_forward, width)
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Hidden states (B, T, width) to the same; mask (B, T) is true on tokens."""
        batch, length, width = hidden.shape
        normed = self.attention_norm(hidden)
        normed = normed + self.neighbours((normed * mask.unsqueeze(-1)).transpose(1, 2)).transpose(1, 2)
        shaped = self.query_key_value(normed).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = shaped.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
        hidden = hidden + self.dropout(self.attention_output(mixed.transpose(1, 2).reshape(batch, length, width)))
        return hidden + self.dropout(self.feed_forward(self.feed_forward_norm(hidden)))


class CodeEncoder(nn.Module):
    """Token ids to one vector a file."""

    def __init__(self, config: CodeEncoderConfig):
        super().__init__()
        self.config = config
        self.ngrams = NgramBag(config)
        self.tokens = nn.Embedding(config.vocabulary_size, config.width, padding_idx=PAD_ID)
        self.positions = nn.Embedding(config.max_positions, config.width)
        nn.init.normal_(self.tokens.weight, std=0.5)
        nn.init.normal_(self.positions.weight, std=0.1)
        self.blocks = nn.ModuleList(EncoderBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Pooled vectors (B, output_width) of ids (B, T); attention_mask (B, T) is 1 on tokens, 0 on padding."""
        mask = attention_mask.bool()
        length = input_ids.shape[1]
        hidden = self.dropout(self.tokens(input_ids) + self.positions.weight[:length])
        for block in self.blocks:
            hidden = block(hidden, mask)
        hidden = self.norm(hidden)
        inside = mask.unsqueeze(-1)
        mean = (hidden * inside).sum(dim=1) / inside.sum(dim=1).clamp(min=1)
        highest = hidden.masked_fill(~inside, MASKED).amax(dim=1)
        return torch.cat([self.ngrams(input_ids, mask), mean, highest], dim=1)
