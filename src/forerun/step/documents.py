"""Several documents in one row, exactly as if each were alone: masks, positions, and one pooled vector for each.

A packed batch has `documents` (R, T), the number of the document that a token belongs to within its row, counted from
1, and 0 for padding; and `position_ids` (R, T), which restart with every document. A token attends to its own document
only, and to nothing else: models that are told of a boundary by restarting positions alone leak across it when they are
encoders (transformers 5.23).

A classifier pools the first token of a row. Packed rows hold many documents, so what the encoder returns is replaced by
the first token of each, as rows of length one: (N, 1, D).

Attention that is written out (`eager`) adds its mask to scores, PyTorch's kernels take booleans. Layers of another
reach (sliding windows, chunks) get masks of their own, by the name that the configuration gives their kind.

Where a kernel takes offsets instead of a mask (`attention.py`), it gets `boundaries`: where each document begins when
the rows are laid end to end, and the end; what is left of a row is one more document. `longest` bounds their lengths.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from forerun.errors import NotSupported
from forerun.step.decoder_types import DECODER_TYPES

DOCUMENTS, FIRSTS = "documents", "firsts"
BOUNDARIES, LONGEST = "boundaries", "longest"
"""Keys of a packed batch: offsets, int32 (N + 1,), and a bound of the documents' lengths, which stays on the host."""
ENCODER_FAMILIES = frozenset({"bert", "roberta", "xlm-roberta", "electra", "distilbert"})
"""Encoders that are tested to give packed documents what they give single ones; decoders are `DECODER_TYPES`."""
FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
"""Kinds of layers in configurations of transformers (`layer_types`)."""
LAST_STAGE = ("encoder", "transformer")
"""Names, inside the backbone, of the module that returns the sequence that heads pool."""


def block_mask(documents: Tensor, *, is_causal: bool) -> Tensor:
    """Who may attend to whom, (R, 1, T, T) booleans, from `documents` (R, T)."""
    mask = documents[:, None, :, None] == documents[:, None, None, :]
    if is_causal:
        length = documents.shape[1]
        mask = mask & torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    return mask


def masks_by_layer(
    documents: Tensor, positions: Tensor, config: Any, *, is_causal: bool, dtype: torch.dtype
) -> Tensor | dict[str, Tensor]:
    """What a transformers model takes as `attention_mask`: one (R, 1, T, T), or one for each kind of its layers.

    Booleans, or where attention is written out what is added to scores, in `dtype`. Reaches are counted by `positions`
    (R, T), which restart with every document.
    """
    together = block_mask(documents, is_causal=is_causal)
    apart = positions[:, None, :, None] - positions[:, None, None, :]
    masks: dict[str, Tensor] = {}
    for kind in _layer_kinds(config):
        mask = together
        if kind == SLIDING:
            mask = mask & (apart < config.sliding_window)
        elif kind == CHUNKED:
            chunk = positions // config.attention_chunk_size
            mask = mask & (chunk[:, None, :, None] == chunk[:, None, None, :])
        if getattr(config, "_attn_implementation", None) == "eager":
            none = torch.zeros((), dtype=dtype, device=mask.device)
            mask = torch.where(mask, none, torch.finfo(dtype).min)
        masks[kind] = mask
    return masks if getattr(config, "layer_types", None) and set(masks) != {FULL} else next(iter(masks.values()))


def _layer_kinds(config: Any) -> list[str]:
    """Kinds of layers by how far they look, each once, in the model's order."""
    kinds = getattr(config, "layer_types", None) or [SLIDING if getattr(config, "sliding_window", None) else FULL]
    return list(dict.fromkeys(kinds))


def even_boundaries(rows: int, length: int, documents: int) -> list[int]:
    """Boundaries of rows of `length` tokens that hold so many documents each, as even as can be."""
    return [row * length + n * length // documents for row in range(rows) for n in range(documents)] + [rows * length]


def position_offset(config: Any) -> int:
    """Number that a model adds to positions counted from 0: RoBERTa's begin after the padding id."""
    # transformers/models/roberta/modeling_roberta.py (5.23), create_position_ids_from_input_ids
    return config.pad_token_id + 1 if config.model_type in ("roberta", "xlm-roberta") else 0


def require_packable(model: nn.Module, workload: str) -> None:
    """Refuse models that are not known to keep packed documents apart.

    Raises:
        NotSupported: naming the family and the remedy.
    """
    config: Any = getattr(model, "config", None)
    kind = getattr(config, "model_type", type(model).__name__)
    families = DECODER_TYPES if workload == "causal-lm" else ENCODER_FAMILIES
    if kind == "falcon" and config.alibi:
        raise NotSupported(
            "batch.padding: Falcon counts its biases (alibi) along the row and not along a document; found packed. Set "
            "batch.padding to bucketed."
        )
    if kind not in families:
        raise NotSupported(
            f"batch.padding: packed documents need a model type that was tested with them ({len(families)} were for "
            f"{workload}); found {kind}. Set batch.padding to bucketed."
        )


@contextlib.contextmanager
def pooled_by_document(backbone: nn.Module, firsts: Tensor) -> Iterator[None]:
    """Let the encoder inside `backbone` return the tokens at `firsts` (N,) of its rows laid end to end, (N, 1, D)."""
    stage = next((getattr(backbone, name) for name in LAST_STAGE if hasattr(backbone, name)), backbone)

    def gathered(module: nn.Module, inputs: Any, output: Any) -> Any:
        output["last_hidden_state"] = output["last_hidden_state"].flatten(0, 1)[firsts].unsqueeze(1)
        return output

    handle = stage.register_forward_hook(gathered)
    try:
        yield
    finally:
        handle.remove()
