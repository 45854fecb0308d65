"""Several documents in one row, exactly as if each were alone: masks, positions, and one pooled vector for each.

A packed batch has `documents` (R, T), the number of the document that a token belongs to within its row, counted from
1, and 0 for padding; and `position_ids` (R, T), which restart with every document. A token attends to its own document
only, and to nothing else: models that are told of a boundary by restarting positions alone leak across it when they are
encoders (transformers 5.23).

A classifier pools the first token of a row. Packed rows hold many documents, so what the encoder returns is replaced by
the first token of each, as rows of length one: (N, 1, D).

Where a kernel takes offsets instead of a mask (`attention.py`), it gets `boundaries`: where each document begins when
the rows are laid end to end, and the end; what is left of a row is one more document. `longest` bounds their lengths.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from forerun.errors import NotSupported

DOCUMENTS, FIRSTS = "documents", "firsts"
BOUNDARIES, LONGEST = "boundaries", "longest"
"""Keys of a packed batch: offsets, int32 (N + 1,), and a bound of the documents' lengths, which stays on the host."""
CAUSAL_FAMILIES = frozenset({"gpt2", "gpt_neox", "opt", "llama", "mistral", "qwen2", "phi"})
ENCODER_FAMILIES = frozenset({"bert", "roberta", "xlm-roberta", "electra", "distilbert"})
"""Model types that are tested to give packed documents what they give single ones."""
LAST_STAGE = ("encoder", "transformer")
"""Names, inside the backbone, of the module that returns the sequence that heads pool."""


def block_mask(documents: Tensor, *, is_causal: bool) -> Tensor:
    """Who may attend to whom, (R, 1, T, T) booleans, from `documents` (R, T)."""
    mask = documents[:, None, :, None] == documents[:, None, None, :]
    if is_causal:
        length = documents.shape[1]
        mask = mask & torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    return mask


def even_boundaries(rows: int, length: int, documents: int) -> list[int]:
    """Boundaries of rows of `length` tokens that hold so many documents each, as even as can be."""
    return [row * length + n * length // documents for row in range(rows) for n in range(documents)] + [rows * length]


def position_offset(config: Any) -> int:
    """Number that a model adds to positions counted from 0: RoBERTa's begin after the padding id."""
    # transformers/models/roberta/modeling_roberta.py (5.23), create_position_ids_from_input_ids
    return config.pad_token_id + 1 if config.model_type in ("roberta", "xlm-roberta") else 0


def require_packable(model: nn.Module, workload: str, sequence_length: int) -> None:
    """Refuse models that are not known to keep packed documents apart.

    Raises:
        NotSupported: naming the family and the remedy.
    """
    config: Any = getattr(model, "config", None)
    kind = getattr(config, "model_type", type(model).__name__)
    window = getattr(config, "sliding_window", None) or sequence_length
    families = CAUSAL_FAMILIES if workload == "causal-lm" else ENCODER_FAMILIES
    if kind not in families or window < sequence_length:
        raise NotSupported(
            f"batch.padding: packed documents are exact for {', '.join(sorted(families))} over at most their attention "
            f"window; found {kind} for {workload}. Set batch.padding to bucketed."
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
