"""A classifier of texts: an encoder, a way to make one vector of its hidden states, and a linear head.

The encoder is one of transformers' or a small one that is trained from scratch (`CodeEncoder`'s blocks and hashed
n-grams over a text vocabulary). Pooling: `cls` takes the first token, `mean` averages, `attention` weighs tokens by a
learned query. For augmentation the embeddings can be shifted (`shift`, adversarial) or dropped (`keep_mask`, cutoff),
and pooled vectors mixed (`partner`, `share`).
"""

from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from forerun.errors import InvalidSettings
from forerun.models.code_encoder import CodeEncoder, CodeEncoderConfig

Pooling = Literal["cls", "mean", "attention"]
NEGLIGIBLE = -1e4
"""Logit of padding in attention pooling; finite in 16 bits."""
SPLIT = ("bert", "roberta", "xlm-roberta")
"""Families whose layers are all that lies between embeddings and hidden states, each a function of states and mask."""


class Backbone(Protocol):
    """Interface between `TextClassifier` and its encoder."""

    width: int
    """Width of the hidden states."""
    bag_width: int
    """Width of the text vector's n-gram part, which is not pooled; 0 without one."""

    def embed(self, ids: Tensor) -> Tensor:
        """Token embeddings (B, T, E) of ids (B, T)."""
        ...

    def hidden(self, ids: Tensor, mask: Tensor, types: Tensor | None, embedded: Tensor | None) -> Tensor:
        """Hidden states (B, T, width) of ids, or of `embedded` in their place."""
        ...

    def bag(self, ids: Tensor, mask: Tensor) -> Tensor | None:
        """Vector (B, bag_width) of the text's n-grams."""
        ...

    def layers(self) -> list[nn.Module]:
        """Layers that `frozen_layers` counts, from the input on; the embeddings come before the first."""
        ...

    def embeddings(self) -> nn.Module:
        """Module of the embeddings, below the first layer."""
        ...


class TransformerBackbone(nn.Module):
    """An encoder of transformers; its own pooler, which nothing would train, is dropped."""

    bag_width = 0

    def __init__(self, model: Any):
        super().__init__()
        if getattr(model, "pooler", None) is not None:
            model.pooler = None
        self.model = model
        config = model.config
        self.width = int(config.hidden_size)
        self.takes_types = (getattr(config, "type_vocab_size", None) or 0) > 1
        self.is_local = config.model_type == "longformer"
        self.can_split = config.model_type in SPLIT
        """Whether layers can be run without those below them."""

    def embed(self, ids: Tensor) -> Tensor:
        """Rows of the token table alone; the model adds positions and types."""
        # modeling_bert.py (transformers 5.23): `inputs_embeds` replaces the token table, positions and types are added
        return self.model.get_input_embeddings()(ids)

    def hidden(self, ids: Tensor, mask: Tensor, types: Tensor | None, embedded: Tensor | None) -> Tensor:
        """The model's last hidden states."""
        inputs: dict[str, Tensor] = {"input_ids": ids} if embedded is None else {"inputs_embeds": embedded}
        if types is not None and self.takes_types:
            inputs["token_type_ids"] = types
        if self.is_local:  # as LongformerForSequenceClassification (modeling_longformer.py, transformers 5.23)
            first = torch.arange(mask.shape[1], device=mask.device) == 0
            inputs["global_attention_mask"] = first.to(mask.dtype).expand_as(mask)
        return self.model(attention_mask=mask, **inputs).last_hidden_state

    def below(self, ids: Tensor, mask: Tensor, types: Tensor | None, layers: int) -> Tensor:
        """States (B, T, width) after the embeddings and the first `layers` layers."""
        type_inputs = {} if types is None or not self.takes_types else {"token_type_ids": types}
        return self._through(self.layers()[:layers], self.embeddings()(input_ids=ids, **type_inputs), mask)

    def above(self, states: Tensor, mask: Tensor, layers: int) -> Tensor:
        """Hidden states of what `below` gives with as many layers."""
        return self._through(self.layers()[layers:], states, mask)

    def _through(self, layers: list[nn.Module], states: Tensor, mask: Tensor) -> Tensor:
        from transformers.masking_utils import create_bidirectional_mask

        # modeling_bert.py, BertModel._create_attention_masks (transformers 5.23): layers take this mask, not (B, T)
        attention_mask = create_bidirectional_mask(config=self.model.config, inputs_embeds=states, attention_mask=mask)
        for layer in layers:
            states = layer(states, attention_mask)
        return states

    def bag(self, ids: Tensor, mask: Tensor) -> None:
        """None: an encoder of transformers has no n-grams."""

    def layers(self) -> list[nn.Module]:
        """Blocks of the model."""
        lists = [module for module in self.model.modules() if isinstance(module, nn.ModuleList)]
        return list(max(lists, key=len)) if lists else []

    def embeddings(self) -> nn.Module:
        """Token, position and type tables."""
        return getattr(self.model, "embeddings", self.model.get_input_embeddings())

    def gradient_checkpointing_enable(self, **kwargs: object) -> None:
        """Recompute blocks in the backward pass."""
        self.model.gradient_checkpointing_enable(**kwargs)


class SmallBackbone(nn.Module):
    """`CodeEncoder`'s parts without its pooling."""

    def __init__(self, config: CodeEncoderConfig):
        super().__init__()
        self.encoder = CodeEncoder(config)
        self.width, self.bag_width = config.width, config.orders * config.ngram_width

    def embed(self, ids: Tensor) -> Tensor:
        """The table of tokens."""
        return self.encoder.tokens(ids)

    def hidden(self, ids: Tensor, mask: Tensor, types: Tensor | None, embedded: Tensor | None) -> Tensor:
        """Hidden states after the last block; types are not used, since an end mark parts two texts."""
        own, inside = self.encoder, mask.bool()
        hidden = own.dropout((self.embed(ids) if embedded is None else embedded) + own.positions.weight[: ids.shape[1]])
        for block in own.blocks:
            hidden = block(hidden, inside)
        return own.norm(hidden)

    def bag(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Vector (B, bag_width) of hashed n-grams."""
        return self.encoder.ngrams(ids, mask.bool())

    def layers(self) -> list[nn.Module]:
        """Blocks of the encoder."""
        return list(self.encoder.blocks)

    def embeddings(self) -> nn.Module:
        """The table of tokens."""
        return self.encoder.tokens


class TextClassifier(nn.Module):
    """Encoder, pooling, dropout and a linear head: ids (B, T) to logits (B, labels)."""

    def __init__(self, backbone: Any, labels: int, pooling: Pooling, dropout: float):
        super().__init__()
        self.backbone: Any = backbone
        self.pooling: Pooling = pooling
        self.frozen_layers = 0
        self._frozen: list[nn.Module] = []
        self.query = nn.Linear(backbone.width, 1, bias=False) if pooling == "attention" else None
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(backbone.width + backbone.bag_width, labels)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        *,
        shift: Tensor | None = None,
        keep_mask: Tensor | None = None,
        partner: Tensor | None = None,
        share: Tensor | None = None,
        states: Tensor | None = None,
    ) -> Tensor:
        """Logits (B, labels) of ids and mask (B, T).

        `states` (B, T, width) are what the frozen layers make of the ids (`below`), which then are not run.
        `shift` (B, T, E) is added to the token embeddings, `keep_mask` (B, T) is 0 where a token is cut off; the vector
        of sample i becomes share[i] of its own and 1 - share[i] of that of sample partner[i].
        """
        embedded = None
        if shift is not None or keep_mask is not None:
            embedded = self.backbone.embed(input_ids)
            embedded = embedded if shift is None else embedded + shift.to(embedded.dtype)
            embedded = embedded if keep_mask is None else embedded * keep_mask.unsqueeze(-1).to(embedded.dtype)
        if states is not None:
            states = states.to(self.classifier.weight.dtype)
            hidden = self.backbone.above(states, attention_mask, self.frozen_layers)
        else:
            hidden = self.backbone.hidden(input_ids, attention_mask, token_type_ids, embedded)
        pooled = self._pooled(hidden, attention_mask)
        bag = self.backbone.bag(input_ids, attention_mask if keep_mask is None else attention_mask * keep_mask.long())
        vector = pooled if bag is None else torch.cat([bag.to(pooled.dtype), pooled], dim=1)
        if partner is not None and share is not None:
            own = share.unsqueeze(1).to(vector.dtype)
            vector = own * vector + (1 - own) * vector[partner]
        return self.classifier(self.dropout(vector))

    def embedding_shift(self, input_ids: Tensor) -> Tensor:
        """Zeros in the shape of the embeddings, to be given as `shift`."""
        with torch.no_grad():
            return torch.zeros_like(self.backbone.embed(input_ids), dtype=torch.float32)

    def freeze_layers(self, count: int) -> None:
        """Never train the embeddings and the first `count` layers, nothing for 0; all layers are the whole encoder.

        What is frozen has no dropout either: noise is there to be trained against.

        Raises:
            InvalidSettings: it has fewer.
        """
        layers = self.backbone.layers()
        if count > len(layers):
            raise InvalidSettings(
                f"recipe.frozen_layers: at most the {len(layers)} layers of the encoder; found {count}. Lower it."
            )
        if count == 0:
            return
        whole: list[nn.Module] = [self.backbone] if count == len(layers) and self.backbone.bag_width == 0 else []
        self.frozen_layers = count
        self._frozen = whole or [self.backbone.embeddings(), *layers[:count]]
        for module in self._frozen:
            module.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> "TextClassifier":
        """Training mode, but for what is frozen."""
        # nn.Module.train sets every submodule, also on each return from evaluation, so frozen ones are reset here
        super().train(mode)
        for module in self._frozen:
            module.eval()
        return self

    def gradient_checkpointing_enable(self, **kwargs: object) -> None:
        """Recompute the encoder's blocks in the backward pass.

        Raises:
            InvalidSettings: the small encoder has none worth it.
        """
        if not isinstance(self.backbone, TransformerBackbone):
            raise InvalidSettings("activation_checkpointing: text-encoder has no blocks to recompute. Set it to none.")
        self.backbone.gradient_checkpointing_enable(**kwargs)

    def _pooled(self, hidden: Tensor, mask: Tensor) -> Tensor:
        if self.pooling == "cls":
            return hidden[:, 0]
        if self.query is not None:
            weights = self.query(hidden).squeeze(-1).float().masked_fill(~mask.bool(), NEGLIGIBLE).softmax(dim=1)
        else:
            weights = mask / mask.sum(dim=1, keepdim=True).clamp(min=1)
        return (hidden * weights.unsqueeze(-1).to(hidden.dtype)).sum(dim=1)
