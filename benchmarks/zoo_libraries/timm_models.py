"""Models of timm: the smallest of each module that defines some, without pretrained weights."""

from collections.abc import Iterator
from typing import Any

import timm
import torch
from benchmarks.zoo_libraries.example import Example
from torch import nn

BATCH, CLASSES = 2, 4
SMALLER = (
    "test",
    "atto",
    "femto",
    "pico",
    "nano",
    "xxs",
    "xs",
    "tiny",
    "mini",
    "_t",
    "_s",
    "small",
    "b0",
    "a0",
    "18",
    "10",
    "_0",
)
"""Parts of names of small models, the smallest first."""
TRIED = 4
"""Names of one module that are tried, the likeliest small ones first."""


def names() -> list[str]:
    """Every module of timm that defines models."""
    return sorted(timm.list_modules())


def family(name: str) -> str:
    """Each module for itself."""
    return name


def examples(name: str) -> Iterator[Example]:
    """A few small models of a module, at 96 pixels where the model takes them and else at its own size."""
    models = timm.list_models(module=name)
    likely = sorted(models, key=lambda name: (_rank(name), len(name), name))[:TRIED]
    for model in likely:
        for options in ({"img_size": 96}, {}):
            yield Example(lambda model=model, options=options: _build(model, options), _batch, _call, note=model)


def _rank(name: str) -> int:
    return next((rank for rank, part in enumerate(SMALLER) if part in name), len(SMALLER))


def _build(name: str, options: dict[str, Any]) -> nn.Module:
    return timm.create_model(name, pretrained=False, num_classes=CLASSES, **options)


def _batch(model: Any) -> dict[str, Any]:
    size = getattr(getattr(model, "patch_embed", None), "img_size", None) or model.default_cfg["input_size"][1:]
    channels = model.default_cfg["input_size"][0]
    return {"images": torch.randn(BATCH, channels, *size), "labels": torch.arange(BATCH)}


def _call(model: nn.Module, batch: dict[str, Any]) -> Any:
    return {"loss": nn.functional.cross_entropy(model(batch["images"]), batch["labels"])}
