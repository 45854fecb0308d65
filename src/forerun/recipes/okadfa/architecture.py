"""Parameter counts of the decoders here for the audit; an entry point of `forerun.architectures` names this module."""

from collections.abc import Mapping
from typing import Any

from forerun.audit.architecture import ArchitectureCounts, Linear
from forerun.recipes.okadfa.model.kernel_decoder import SHAPES, decoder_config


def architecture(name: str, overrides: Mapping[str, Any]) -> ArchitectureCounts | None:
    """Counts of the shape `name` with changed fields; None where it is no shape of this recipe."""
    if name not in SHAPES:
        return None
    config = decoder_config(name, dict(overrides))
    sizes: Mapping[str, tuple[int, int]] = {
        "query": (config.width, config.width), "key": (config.width, config.width),
        "value": (config.width, config.width), "output": (config.width, config.width),
        "up": (config.width, config.feed_forward), "down": (config.feed_forward, config.width),
    }  # fmt: skip
    return ArchitectureCounts(
        name=name,
        total=config.parameters,
        embedding=config.vocabulary_size * config.width,
        positions=0,
        head_is_tied=True,
        linears=tuple(
            Linear(f"blocks.{layer}.{part}", *size) for layer in range(config.layers) for part, size in sizes.items()
        ),
        convolutions=0,
        layers=config.layers,
        width=config.width,
        heads=config.heads,
        vocabulary=config.vocabulary_size,
        has_logits=True,
        is_causal=True,
    )
