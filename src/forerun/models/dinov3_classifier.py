"""DINOv3 with a linear classifier, which transformers does not have: the head that its paper probes with.

Source: Siméoni et al. 2025, arXiv:2508.10104. The classifier reads the pooled output, the class token of a vision
transformer and the mean of the places of a convolutional network (`pooler_output`, transformers 5.24).

Not covered: published weights, whose names were not tried on these classes.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForImageClassification
from transformers.modeling_outputs import ImageClassifierOutput
from transformers.models.dinov3_convnext.configuration_dinov3_convnext import DINOv3ConvNextConfig
from transformers.models.dinov3_convnext.modeling_dinov3_convnext import (
    DINOv3ConvNextModel,
    DINOv3ConvNextPreTrainedModel,
)
from transformers.models.dinov3_vit.configuration_dinov3_vit import DINOv3ViTConfig
from transformers.models.dinov3_vit.modeling_dinov3_vit import DINOv3ViTModel, DINOv3ViTPreTrainedModel


class DINOv3ViTClassifier(DINOv3ViTPreTrainedModel):
    """The vision transformer and a linear layer."""

    base_model_prefix = "dinov3"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.dinov3 = DINOv3ViTModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ImageClassifierOutput:
        """Logits (B, labels) of images (B, C, H, W), and the mean cross-entropy where there are labels (B,)."""
        return _answer(self.classifier(self.dinov3(pixel_values).pooler_output), labels)


class DINOv3ConvNextClassifier(DINOv3ConvNextPreTrainedModel):
    """The convolutional network and a linear layer."""

    base_model_prefix = "dinov3"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.dinov3 = DINOv3ConvNextModel(config)
        self.classifier = nn.Linear(config.hidden_sizes[-1], config.num_labels)
        self.post_init()

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ImageClassifierOutput:
        """Logits (B, labels) of images (B, C, H, W), and the mean cross-entropy where there are labels (B,)."""
        return _answer(self.classifier(self.dinov3(pixel_values).pooler_output), labels)


def _answer(logits: Tensor, labels: Tensor | None) -> ImageClassifierOutput:
    loss = None if labels is None else F.cross_entropy(logits, labels)
    return ImageClassifierOutput(loss=loss, logits=logits)  # type: ignore[arg-type]


def offer_classifiers() -> None:
    """Make them what `AutoModelForImageClassification` builds."""
    AutoModelForImageClassification.register(DINOv3ViTConfig, DINOv3ViTClassifier, exist_ok=True)
    AutoModelForImageClassification.register(DINOv3ConvNextConfig, DINOv3ConvNextClassifier, exist_ok=True)
