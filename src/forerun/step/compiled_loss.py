"""What a workload does otherwise where its whole model is compiled: the loss is compiled too, and rows are one text.

transformers looks at position ids to see whether a row holds several documents, which it cannot do while it is
compiled: it then builds a mask for each case, and attention with a mask goes through a slower kernel. Our rows of
several documents bring masks or offsets of their own, so the others are told to hold one.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

COMPILED_CRITERION = "compiled_criterion"
"""Attribute of models that are compiled with their loss: the loss of logits and labels, compiled."""


def is_compiled_whole(model: nn.Module) -> bool:
    """Whether the model, or all of its blocks, was compiled together with its loss."""
    return hasattr(model, COMPILED_CRITERION)


@contextlib.contextmanager
def rows_of_one_document() -> Iterator[None]:
    """Have transformers take every row for one document, without looking."""
    # transformers/masking_utils.py:761 (5.24): "we cannot enable this check on anything compile related"
    masking: Any = sys.modules.get("transformers.masking_utils")
    original = getattr(masking, "find_packed_sequence_indices", None)
    if original is None:
        yield
        return
    masking.find_packed_sequence_indices = _one_document
    try:
        yield
    finally:
        masking.find_packed_sequence_indices = original


def _one_document(position_ids: Tensor) -> None:
    return None
