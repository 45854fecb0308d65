"""Numbers in a model's configuration that no computer could build, refused before a configuration is made of them."""

import math
from collections.abc import Mapping
from typing import Any

from forerun.errors import InvalidSettings
from forerun.settings.plain import in_short, require_plain
from forerun.settings.schema import Settings

MOST_BLOCKS = 1_000
"""Layers of one stack: the deepest published transformer has 1,000 (DeepNet, Wang et al. 2022, arXiv 2203.00555)."""
MOST_TRACED_BLOCKS = 160
"""Layers of a model that is compiled or spread over ranks, and so traced whole: some seconds for every ten of them. The
deepest that is trained so in public has 126 (Llama 3.1 405B, arXiv 2407.21783)."""
MOST_LABELS = 2**20
"""Classes; transformers writes a name for each when it makes the configuration."""
LARGEST = 2**31 - 1
"""Of any other whole number: sizes multiply, and PyTorch counts elements in 64 bits. What has a point is no size: Gemma
3n's ear clips gradients at 1e10."""
LAYERS = ("layers", "n_layer", "num_blocks", "depth")
"""Endings of the fields that say how many blocks there are."""
LABELS = ("num_labels",)


def require_buildable(fields: Mapping[str, Any], where: str) -> None:
    """Check the fields of a configuration, of settings or of a file; `where` names it in messages.

    Raises:
        InvalidSettings: a field is not plain, or larger than any model has.
    """
    try:
        require_plain(_with_ends(fields))
    except ValueError as error:
        raise InvalidSettings(f"{where}: {error}.") from error
    for name, value in fields.items():
        if isinstance(value, Mapping):
            require_buildable(value, f"{where}.{name}")
        most = MOST_BLOCKS if name.endswith(LAYERS) else MOST_LABELS if name.endswith(LABELS) else LARGEST
        sizes = (int, float) if most < LARGEST else (int,)
        if isinstance(value, sizes) and abs(value) > most:
            raise InvalidSettings(f"{where}.{name}: at most {most:,}; found {in_short(value)}. Lower it.")


def _with_ends(value: Any) -> Any:
    """A copy whose open ends (`time_step_limit` of Mamba 2's kind: 0 to infinity) are 0, as they are no sizes."""
    if isinstance(value, Mapping):
        return {name: _with_ends(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [0.0 if isinstance(each, float) and each == math.inf else each for each in value]
    return value


def require_depth(settings: Settings, blocks: int) -> None:
    """Check that a model that is traced whole is not too deep for that.

    Raises:
        InvalidSettings: it is compiled or spread over ranks, and deeper than any that is.
    """
    is_whole = settings.compile != "none" or not settings.parallel.is_alone
    if is_whole and blocks > MOST_TRACED_BLOCKS:
        raise InvalidSettings(
            f"model.config: at most {MOST_TRACED_BLOCKS} layers in a model that is compiled or spread over ranks; "
            f"found {blocks} with compile={settings.compile!r}, parallel.kind={settings.parallel.kind!r}. Lower the "
            f"number of layers, or set compile to none and parallel.kind to none."
        )
