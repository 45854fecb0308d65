"""A classification model of torchvision as transformers has models: a configuration, and a loss with the logits."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from transformers import AutoConfig, AutoModelForImageClassification, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ImageClassifierOutput

from forerun.models.library_import import import_library

SIZED = ("vit",)
"""Families whose positions are of one image size, which is an argument."""


class TorchvisionConfig(PretrainedConfig):
    """What `torchvision.models.get_model` is asked for."""

    model_type = "torchvision"
    architecture: str = "resnet50"
    image_size: int = 224
    num_channels: int = 3


@contextlib.contextmanager
def real_widths(models: Any) -> Iterator[None]:
    """RegNet works out the widths of its blocks by tensors (regnet.py, torchvision 0.28): real ones meanwhile."""
    blocks = models.regnet.BlockParams
    original = blocks.__dict__["from_init_params"]

    def from_init_params(cls: Any, *arguments: Any, **named: Any) -> Any:
        with _disable_current_modes(), torch.device("cpu"):
            return original.__func__(cls, *arguments, **named)

    blocks.from_init_params = classmethod(from_init_params)
    try:
        yield
    finally:
        blocks.from_init_params = original


class TorchvisionForImageClassification(PreTrainedModel):
    """The model of torchvision with the mean cross-entropy that its reference script trains with."""

    config_class = TorchvisionConfig
    main_input_name = "pixel_values"
    base_model_prefix = "torchvision_model"
    _supports_sdpa = True

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        sized = {"image_size": config.image_size} if config.architecture.startswith(SIZED) else {}
        models = import_library("torchvision").models
        with real_widths(models):
            self.torchvision_model = models.get_model(
                config.architecture, weights=None, num_classes=config.num_labels, **sized
            )
        self.post_init()

    def _init_weights(self, module: Any) -> None:
        """torchvision initialises its models itself."""

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ImageClassifierOutput:
        """Logits (B, labels) of images (B, C, H, W), and the loss where there are labels (B,)."""
        logits = self.torchvision_model(pixel_values)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return ImageClassifierOutput(loss=loss, logits=logits)  # type: ignore[arg-type]


AutoConfig.register("torchvision", TorchvisionConfig, exist_ok=True)
AutoModelForImageClassification.register(TorchvisionConfig, TorchvisionForImageClassification, exist_ok=True)
