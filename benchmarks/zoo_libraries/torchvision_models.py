"""Models of torchvision: the smallest of each module, for classification, segmentation, detection and video."""

from collections.abc import Iterator
from typing import Any

import torch
from benchmarks.zoo_libraries.example import Example
from torch import nn
from torchvision import models

BATCH, CLASSES, BOXES = 2, 4, 2
PIXELS, FRAMES = 128, 16
KINDS = ("detection", "segmentation", "video", "optical_flow", "quantization")
OWN_SIZE = {
    "inception": 299,
    "video.mvit": 224,
    "video.swin_transformer": 112,
    "maxvit": 224,
    "vision_transformer": 224,
}
"""Modules whose models take one size of image only."""


def names() -> list[str]:
    """One model of each module, as `module:model`: the one with the fewest parameters by its weights' own entry."""
    by_module: dict[str, list[str]] = {}
    for name in models.list_models():
        module = models.get_model_builder(name).__module__.removeprefix("torchvision.models.")
        if not module.startswith(("quantization", "optical_flow")):
            by_module.setdefault(module, []).append(name)
    return sorted(f"{module}:{min(group, key=_parameters)}" for module, group in by_module.items())


def _parameters(name: str) -> int:
    return next((weights.meta["num_params"] for weights in models.get_model_weights(name)), 10**12)


def family(name: str) -> str:
    """Each module for itself."""
    return name


def examples(name: str) -> Iterator[Example]:
    """The model with a batch of its task."""
    module, model = name.split(":")
    kind = module.split(".")[0] if module.split(".")[0] in KINDS else "classification"
    options = {"weights_backbone": None} if kind in ("detection", "segmentation") else {}

    def build() -> nn.Module:
        return models.get_model(model, weights=None, num_classes=CLASSES, **options)

    size = OWN_SIZE.get(module, PIXELS)
    yield Example(build, lambda _: _batch(kind, size), lambda net, batch: _loss(kind, net, batch))


def _batch(kind: str, size: int) -> dict[str, Any]:
    if kind == "detection":
        boxes = torch.tensor([[10.0, 10.0, 60.0, 60.0], [30.0, 20.0, 90.0, 100.0]])
        masks = torch.zeros(BOXES, size, size, dtype=torch.uint8)
        keypoints = torch.rand(BOXES, 17, 3) * 50
        target = {"boxes": boxes, "labels": torch.tensor([1, 2]), "masks": masks, "keypoints": keypoints}
        return {
            "images": [torch.rand(3, size, size) for _ in range(BATCH)],
            "targets": [dict(target) for _ in range(BATCH)],
        }
    frames = [FRAMES] if kind == "video" else []
    images = torch.randn(BATCH, 3, *frames, size, size)
    shape = (BATCH, size, size) if kind == "segmentation" else (BATCH,)
    return {"images": images, "labels": torch.zeros(shape, dtype=torch.long)}


def _loss(kind: str, model: nn.Module, batch: dict[str, Any]) -> Any:
    if kind == "detection":
        return {"loss": torch.stack(list(model(batch["images"], batch["targets"]).values())).sum()}
    output = model(batch["images"])
    if isinstance(output, dict):
        output = output["out"]
    logits = output if isinstance(output, torch.Tensor) else output[0]
    return {"loss": nn.functional.cross_entropy(logits, batch["labels"])}
