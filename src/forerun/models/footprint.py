"""What a model's weights and training states weigh, by parameters alone: a coarse lower bound, not a forecast.

Input: a row of the catalogue and its configuration. Output: bytes. Nothing is counted but weights, gradients and
optimizer states: activations, temporaries, the allocator's slack and the CUDA context come on top, which `forerun
forecast` has.
"""

from collections.abc import Mapping
from typing import Any

from forerun.models.rows import Architecture
from forerun.records import Record

FULL_BYTES = 16
"""Full fine-tuning in mixed precision with AdamW: fp32 weights, gradients and two states (Rajbhandari et al. 2020,
arXiv:1910.02054, section 3.1, without the second copy of weights that torch.autocast does not keep)."""
HALF_BYTES = 2
NF4_BYTES = 0.5 + 4 / 64
"""A weight of 4 bits and its part of one fp32 constant for each block of 64 (Dettmers et al., arXiv:2305.14314)."""


class ModelShape(Record):
    """Sizes of a model, as its configuration states them; null where the family has no such size."""

    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    key_value_heads: int | None = None
    vocabulary: int | None = None
    positions: int | None = None
    experts: int | None = None


class Footprint(Record):
    """Bytes by what is done with the model; each a lower bound."""

    weights_bf16_bytes: int
    weights_nf4_bytes: int
    """Weights of a QLoRA run: embeddings in 16 bits, all else in 4."""
    full_training_bytes: int


class TrainingOption(Record):
    """One way to train on one GPU, forecast; or why there is no forecast."""

    way: str
    gpu: str
    fits: bool | None = None
    device_bytes: float | None = None
    capacity_bytes: int | None = None
    step_seconds: float | None = None
    refusal: str = ""


class LeastCard(Record):
    """The smallest card of a segment whose memory is above a coarse number."""

    what: str
    needs_bytes: int
    cards: Mapping[str, str]
    """Segment → name."""


class ModelDescription(Record):
    """What is known of a model, and what fits where."""

    name: str
    family: str
    hub_ids: tuple[str, ...]
    parameters: int
    parameters_of: str
    source: str
    licence: str | None
    published_bytes: int | None = None
    """Of the safetensors files of a hub id or folder without a row; null where there are none, or nobody was asked."""
    shape: ModelShape
    footprint: Footprint
    coarse: tuple[LeastCard, ...]
    """By weights and states alone: a lower bound, no forecast."""
    options: tuple[TrainingOption, ...] = ()


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """Sizes under whatever name the family has for them."""

    def first(*names: str) -> int | None:
        text = config.get("text_config") or {}  # of a model of text and images
        values = (part.get(name) for part in (config, text) for name in names)
        return next((value for value in values if isinstance(value, int)), None)

    return ModelShape(
        layers=first("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
        hidden=first("hidden_size", "n_embd", "d_model", "dim"),
        heads=first("num_attention_heads", "n_head", "num_heads", "n_heads"),
        key_value_heads=first("num_key_value_heads", "num_kv_heads"),
        vocabulary=first("vocab_size"),
        positions=first("max_position_embeddings", "n_positions"),
        experts=first("num_local_experts", "num_experts", "n_routed_experts"),
    )


def footprint_of(row: Architecture, shape: ModelShape, is_tied: bool) -> Footprint:
    """Bytes of a row's weights and states."""
    table = (shape.vocabulary or 0) * (shape.hidden or 0)
    embeddings = min(row.parameters, table * (1 if is_tied or row.parameters_of == "encoder" else 2))
    nf4 = embeddings * HALF_BYTES + (row.parameters - embeddings) * NF4_BYTES
    return Footprint(
        weights_bf16_bytes=row.parameters * HALF_BYTES,
        weights_nf4_bytes=round(nf4),
        full_training_bytes=row.parameters * FULL_BYTES,
    )
