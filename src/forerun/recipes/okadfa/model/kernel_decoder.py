"""The language model of the recipe `okadfa`: a pre-norm decoder with a choice of attention and of learning rule.

Sinusoidal positions, a bias in every linear layer, two LayerNorms a block, an output layer tied to the embedding:

    parameters = L · (4d(d+1) + 2·d·f + f + d + 4d) + 2d + V·d        f = feed-forward width

`SHAPES` holds the shapes that the public original of this recipe names, as its commands make them (its feed-forward
stays 3,072 wide whatever d is) and as its documents describe them (f = 4d), each with what it really is.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from forerun.errors import InvalidSettings, UnknownModel, nearest
from forerun.recipes.okadfa.model.feedback import DirectFeedback, Feedback, LearningRule, feedback_matrix
from forerun.recipes.okadfa.model.kernel_attention import CHUNK, causal_kernel_attention, orthogonal_projection

AttentionKind = Literal["softmax", "elu", "favor", "unscaled"]
INITIAL_SCALE = 0.02
"""Standard deviation of initial weights, as in GPT-2; layers that write to the residual stream start smaller."""
POSITION_SCALE = INITIAL_SCALE * math.sqrt(2)
"""Makes sinusoids as large as the embeddings. At full size they drown the tokens, and a tied embedding then falls into
one direction, the tokens' frequency: the loss stays at that of a table of single tokens (docs/log.md)."""


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Sizes, attention and learning rule."""

    vocabulary_size: int = 257
    width: int = 128
    layers: int = 4
    heads: int = 4
    feed_forward: int = 512
    attention: AttentionKind = "favor"
    features: int = 0
    """Random features of `favor`; 0 takes four times the width of a head."""
    chunk: int = CHUNK
    learning_rule: LearningRule = "backpropagation"
    feedback: Feedback = "random"
    """Kind of the matrix that projects the error at the top."""
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.width % self.heads or min(self.layers, self.vocabulary_size - 1, self.chunk) < 1 or self.width % 2:
            raise InvalidSettings(
                f"model.config: the width must be even and divisible by heads, layers and chunk at least 1; found "
                f"width={self.width}, heads={self.heads}, layers={self.layers}, chunk={self.chunk}."
            )
        if self.learning_rule in ("dfa-macro", "shallow") and self.layers < 2:
            raise InvalidSettings(
                f"recipe.learning_rule: {self.learning_rule} differs from backpropagation only where there are two "
                f"blocks or more; found layers={self.layers}. Raise model.config.layers."
            )

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.width // self.heads

    @property
    def feature_count(self) -> int:
        """Random features of one head."""
        return self.features or 4 * self.head_width

    @property
    def parameters(self) -> int:
        """Trainable numbers, the tied output layer once."""
        d, f = self.width, self.feed_forward
        return self.layers * (4 * d * (d + 1) + 2 * d * f + f + d + 4 * d) + 2 * d + self.vocabulary_size * d

    @property
    def non_embedding_parameters(self) -> int:
        """Trainable numbers without the embedding."""
        return self.parameters - self.vocabulary_size * self.width


@dataclass(frozen=True)
class NamedShape:
    """A shape and what it is called."""

    config: DecoderConfig
    is_called: str
    """Its true size, with GPT-2's name where the shape is GPT-2's."""


def _gpt2(width: int, layers: int, heads: int, feed_forward: int) -> DecoderConfig:
    return DecoderConfig(vocabulary_size=50_257, width=width, layers=layers, heads=heads, feed_forward=feed_forward)


SHAPES = {
    "okadfa-tiny": NamedShape(DecoderConfig(), "0.8M, for two CPU cores"),
    "okadfa-fast": NamedShape(_gpt2(768, 12, 12, 3072), "123.7M, GPT-2 Small's shape; the original says 85M"),
    "okadfa-production": NamedShape(_gpt2(1024, 12, 16, 3072), "177.4M; the original says 175M, GPT-2 Medium"),
    "okadfa-production-4x": NamedShape(_gpt2(1024, 12, 16, 4096), "202.6M, with feed-forward 4d as documented"),
    "okadfa-max": NamedShape(_gpt2(1024, 24, 16, 3072), "303.4M; the original says 355M, GPT-2 Large"),
    "okadfa-max-4x": NamedShape(_gpt2(1024, 24, 16, 4096), "353.8M, GPT-2 Medium's shape, as documented"),
    "okadfa-mega": NamedShape(_gpt2(1280, 36, 20, 3072), "583.9M; the original says 750M"),
    "okadfa-mega-4x": NamedShape(_gpt2(1280, 36, 20, 5120), "772.7M, GPT-2 Large's shape, as documented"),
}


def decoder_config(name: str, overrides: dict[str, Any]) -> DecoderConfig:
    """The configuration of a shape with `overrides`.

    Raises:
        UnknownModel: no such shape.
        InvalidSettings: an override is no field, or sizes do not go together.
    """
    if name not in SHAPES:
        raise UnknownModel(f"model.name: no shape {name!r} of okadfa. Nearest: {nearest(name, list(SHAPES))}.")
    field_names = [field.name for field in dataclasses.fields(DecoderConfig)]
    for field in overrides:
        if field not in field_names:
            raise InvalidSettings(f"model.config.{field}: no field of okadfa. Nearest: {nearest(field, field_names)}.")
    return dataclasses.replace(SHAPES[name].config, **overrides)


@dataclass(frozen=True)
class DecoderOutput:
    """Output for one batch."""

    logits: Tensor
    """(B, T, V); the states (B, T, d) before the output layer where the model `returns_states`."""
    attention_ratios: Tensor
    """‖attention output‖ / ‖values‖ of each block, (L,), fp32, without gradient."""


class Attention(nn.Module):
    """Causal self-attention of one kind."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.config = config
        width = config.width
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        needs = config.attention in ("favor", "unscaled")
        self.register_buffer("projection", torch.empty(config.feature_count if needs else 0, config.head_width))
        self.redraw()

    projection: Tensor

    def redraw(self, generator: torch.Generator | None = None) -> None:
        """New random features, from `generator` on the CPU or from the default one."""
        if self.projection.numel() and self.projection.device.type in ("cpu", "cuda"):
            new_features = orthogonal_projection(*self.projection.shape, generator)  # type: ignore[call-arg]
            self.projection.copy_(new_features)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Output (B, T, d) and its norm over that of the values."""
        query, key, value = self.heads_of(hidden)
        mixed = self.mix(query, key, value)
        ratio = _norm(mixed) / _norm(value)
        return self.output(mixed.transpose(1, 2).flatten(2)), ratio

    def heads_of(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, H, T, d/H)."""
        shape = (*hidden.shape[:2], self.config.heads, self.config.head_width)
        query, key, value = (part(hidden).view(shape).transpose(1, 2) for part in (self.query, self.key, self.value))
        return query, key, value

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Values mixed by attention, (B, H, T, d/H)."""
        if self.config.attention == "softmax":
            return F.scaled_dot_product_attention(query, key, value, is_causal=True)
        kind = self.config.attention
        return causal_kernel_attention(query, key, value, kind, self.projection, self.config.chunk)


class DecoderBlock(nn.Module):
    """Attention and feed-forward, both pre-norm and residual."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.LayerNorm(config.width)
        self.feed_forward = nn.Sequential(
            nn.Linear(config.width, config.feed_forward), nn.GELU(), nn.Linear(config.feed_forward, config.width)
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor, cut_inside: bool = False) -> tuple[Tensor | None, Tensor, Tensor]:
        """The states between the sub-layers if they are cut there, the block's output, the attention's ratio."""
        mixed, ratio = self.attention(self.attention_norm(hidden))
        middle = hidden + self.dropout(mixed)
        below = middle.detach() if cut_inside else middle
        above = below + self.dropout(self.feed_forward(self.feed_forward_norm(below)))
        return middle if cut_inside else None, above, ratio


class KernelDecoder(nn.Module):
    """Token ids to logits; trained by the rule of its configuration."""

    feedback: Tensor
    orthogonality_share: Tensor

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.config = config
        self.learning_rule: LearningRule = config.learning_rule
        self.returns_states = False
        self._recomputes: dict[str, Any] | None = None
        self.embedding = nn.Embedding(config.vocabulary_size, config.width)
        self.blocks = nn.ModuleList(DecoderBlock(config) for _ in range(config.layers))
        self.final_norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary_size, bias=False)
        self.head.weight = self.embedding.weight
        self.dropout = nn.Dropout(config.dropout)
        has_feedback = config.learning_rule.startswith("dfa")
        self.register_buffer("feedback", feedback_matrix(config.width if has_feedback else 0, config.feedback))
        self.register_buffer("orthogonality_share", torch.zeros(()))  # of its full weight; 0 before warm-up
        self._start()

    def _start(self) -> None:
        """Initial weights: orthogonal queries and keys, the rest as GPT-2; lower blocks of `shallow` are fixed."""
        # transformers/models/gpt2/modeling_gpt2.py (5.23), _init_weights: two residual paths a block.
        writes = INITIAL_SCALE / math.sqrt(2 * self.config.layers)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear) and module is not self.head:
                if name.endswith(("query", "key")):
                    if module.weight.device.type != "meta":
                        nn.init.orthogonal_(module.weight)
                else:
                    is_writer = name.endswith(("attention.output", "feed_forward.2"))
                    nn.init.normal_(module.weight, std=writes if is_writer else INITIAL_SCALE)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.embedding.weight, std=INITIAL_SCALE)
        if self.config.learning_rule == "shallow":
            for block in self.blocks[:-1]:
                block.requires_grad_(False)

    def forward(self, input_ids: Tensor) -> DecoderOutput:
        """Logits (or states) of ids (B, T), tied to the feedback of the learning rule."""
        # Without gradients there is nothing to feed back, and evaluation takes the plain path.
        rule = self.learning_rule if torch.is_grad_enabled() else "backpropagation"
        fixed = torch.no_grad() if rule == "shallow" else contextlib.nullcontext()
        tied: list[Tensor] = []
        ratios: list[Tensor] = []
        with fixed:
            hidden = self._embedded(input_ids)
            for block in self.blocks[:-1]:
                hidden = self._through(block, hidden, rule, tied, ratios)
                if rule.startswith("dfa"):
                    tied.append(hidden)
                    hidden = hidden.detach()
        hidden = self._through(self.blocks[-1], hidden, rule, tied, ratios)
        if tied:
            hidden = DirectFeedback.apply(hidden, self.feedback, *tied)
        states = self.final_norm(hidden)
        return DecoderOutput(states if self.returns_states else self.head(states), torch.stack(ratios))

    def _embedded(self, ids: Tensor) -> Tensor:
        positions = sinusoids(ids.shape[1], self.config.width, ids.device) * POSITION_SCALE
        return self.dropout(self.embedding(ids) + positions.to(self.embedding.weight.dtype))

    def _through(
        self, block: nn.Module, hidden: Tensor, rule: LearningRule, tied: list[Tensor], ratios: list[Tensor]
    ) -> Tensor:
        cut = rule == "dfa-micro"
        if self._recomputes is not None and self.training and torch.is_grad_enabled():
            middle, above, ratio = checkpoint(block, hidden, cut, **self._recomputes)  # type: ignore[misc]
        else:
            middle, above, ratio = block(hidden, cut)
        if middle is not None:
            tied.append(middle)
        ratios.append(ratio)
        return above

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict[str, Any]) -> None:
        """Recompute every block in the backward pass."""
        self._recomputes = gradient_checkpointing_kwargs

    @contextlib.contextmanager
    def trained_by(self, rule: LearningRule) -> Iterator[None]:
        """Another learning rule for a while, to compare gradients."""
        before, self.learning_rule = self.learning_rule, rule
        try:
            yield
        finally:
            self.learning_rule = before

    def orthogonality(self) -> Tensor:
        """Mean over blocks of ‖W Wᵀ − 1‖²/d of queries and keys, along the shorter side of W, so that 0 can be met."""
        attentions = [module for module in self.modules() if isinstance(module, Attention)]
        trained = [attention for attention in attentions if attention.query.weight.requires_grad]
        return sum(
            _distance_to_orthogonal(part.weight) for attention in trained for part in (attention.query, attention.key)
        ) / len(trained)  # type: ignore[return-value]

    def redraw(self, seed: int) -> None:
        """New random features in every block, the same for a seed."""
        generator = torch.Generator(device="cpu").manual_seed(seed)
        for block in self.blocks:
            block.attention.redraw(generator)  # type: ignore[union-attr, operator]


def _distance_to_orthogonal(weight: Tensor) -> Tensor:
    short = weight if weight.shape[0] <= weight.shape[1] else weight.mT
    product = (short @ short.mT).float()
    return (product - torch.eye(len(short), device=weight.device)).square().sum() / len(short)


def _norm(values: Tensor) -> Tensor:
    return torch.linalg.vector_norm(values.detach(), dtype=torch.float32)


def sinusoids(length: int, width: int, device: torch.device) -> Tensor:
    """Positions (T, d) of Vaswani et al. 2017 (arXiv 1706.03762), section 3.5; fp32."""
    place = torch.arange(length, device=device, dtype=torch.float32)[:, None]
    rates = torch.exp(torch.arange(0, width, 2, device=device, dtype=torch.float32) * (-math.log(10_000) / width))
    angles = place * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
