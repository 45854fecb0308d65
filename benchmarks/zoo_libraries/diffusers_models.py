"""Models of diffusers: every class of `diffusers.models` that is built from a configuration, at a small size.

Inputs follow the names of the parameters of `forward`; several layouts are tried and the CPU decides. Classes that
this does not reach have theirs in `diffusers_inputs`.
"""

import inspect
import os
from collections.abc import Iterator
from typing import Any

import torch
from benchmarks.zoo_libraries.diffusers_inputs import OWN
from benchmarks.zoo_libraries.example import Example
from benchmarks.zoo_libraries.shrink import SIZES, Size, shrunk
from torch import nn

os.environ["HF_HUB_OFFLINE"] = "1"
import diffusers  # noqa: E402

BATCH, LENGTH, MOST_PARAMETERS = 1, 8, 300_000_000
LEAST_CHANNELS = 32


def names() -> list[str]:
    """Every class that can be trained on its own."""
    kinds = [getattr(diffusers, name, None) for name in sorted(dir(diffusers)) if _is_model(name)]
    return [kind.__name__ for kind in kinds if kind is not None and hasattr(kind, "forward")]


def _is_model(name: str) -> bool:
    return name.endswith(("Model", "Transformer", "DModel")) or name.startswith(
        ("AutoencoderK", "AutoencoderD", "UNet", "VQ")
    )


def family(name: str) -> str:
    """Each class for itself."""
    return name


def examples(name: str) -> Iterator[Example]:
    """Small and larger twins with inputs in several layouts."""
    kind = getattr(diffusers, name)
    if name in OWN:
        options, inputs = OWN[name]
        yield Example(lambda: kind(**options), lambda model: inputs(), note="own inputs")
    for size in SIZES:
        broken: list[bool] = []  # a size that cannot be built needs no further batch

        def build(size: Size = size, broken: list[bool] = broken) -> nn.Module:
            broken.append(True)
            model = _build(kind, size)
            broken.clear()
            return model

        for layout in ("image", "tokens", "video", "sound"):
            note = f"{size.layers} layers, {'narrow' if size.narrow else 'full width'}, {layout}"
            yield Example(build, lambda model, layout=layout: _batch(model, layout), note=note)
            if broken:
                break


def _build(kind: Any, size: Size) -> nn.Module:
    accepts = inspect.signature(kind.__init__).parameters.values()
    defaults = {p.name: p.default for p in accepts if p.default is not p.empty and p.name != "self"}
    small = shrunk(defaults, size)
    options = {name: small[name] for name, value in defaults.items() if isinstance(value, int) and small[name] != value}
    if size.narrow:
        options |= {
            name: _few_channels(value) for name, value in defaults.items() if name.endswith("block_out_channels")
        }
    with torch.device("meta"):
        parameters = sum(p.numel() for p in kind(**options).parameters())
    if parameters > MOST_PARAMETERS:
        raise MemoryError(f"{parameters:,} parameters are too many for this benchmark")
    return kind(**options)


def _few_channels(channels: Any) -> Any:
    """Channels of the stages divided by one number, so that normalisation in 32 groups still divides the first."""
    factor = max(1, min(channels) // LEAST_CHANNELS) if channels else 1
    return (
        tuple(each // factor for each in channels) if channels and not any(c % factor for c in channels) else channels
    )


def _number(config: Any, default: int, *names: str) -> int:
    values = (getattr(config, name, None) for name in names)
    return next((int(each) for each in values if isinstance(each, int)), default)


def _batch(model: Any, layout: str) -> dict[str, Any]:
    config, accepts = model.config, inspect.signature(model.forward).parameters
    channels = _number(config, 4, "in_channels")
    size = _number(config, 16, "sample_size", "img_size")
    text = _number(
        config,
        32,
        "cross_attention_dim",
        "joint_attention_dim",
        "text_embed_dim",
        "caption_channels",
        "text_dim",
        "encoder_hid_dim",
    )
    shape = {
        "image": (BATCH, channels, size, size),
        "tokens": (BATCH, LENGTH * LENGTH, channels),
        "video": (BATCH, channels, 4, size, size),
        "sound": (BATCH, channels, 1024),
    }[layout]
    pooled = _number(config, 32, "pooled_projection_dim")
    words = torch.randn(BATCH, LENGTH, text)
    makers = {
        "sample": lambda: torch.randn(shape),
        "hidden_states": lambda: torch.randn(shape), "x": lambda: torch.randn(shape),
        "timestep": lambda: torch.tensor([5] * BATCH),
        "timesteps": lambda: torch.tensor([5] * BATCH),
        "encoder_hidden_states": lambda: words, "encoder_attention_mask": lambda: torch.ones(BATCH, LENGTH),
        "pooled_projections": lambda: torch.randn(BATCH, pooled),
        "class_labels": lambda: torch.zeros(BATCH, dtype=torch.long),
        "img_ids": lambda: torch.zeros(LENGTH * LENGTH, 3), "txt_ids": lambda: torch.zeros(LENGTH, 3),
        "guidance": lambda: torch.ones(BATCH), "controlnet_cond": lambda: torch.randn(BATCH, 3, size * 8, size * 8),
        "num_frames": lambda: 1,
    }  # fmt: skip
    needed = {name for name, p in accepts.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
    optional = {"encoder_hidden_states", "timestep", "pooled_projections", "img_ids", "txt_ids"}
    if getattr(config, "guidance_embeds", False):
        optional |= {"guidance"}
    if getattr(config, "num_embeds_ada_norm", None) and "transformer" in type(model).__module__:
        optional |= {"class_labels"}
    return {name: makers[name]() for name in accepts if name in makers and name in needed | optional}
