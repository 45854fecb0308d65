import pytest
import torch
from transformers import AutoConfig

from forerun.models.build import build_model, workloads_of

SMALL = {
    "dinov3_vit": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "image_size": 32,
    },
    "dinov3_convnext": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "image_size": 32},
}


@pytest.mark.parametrize("kind", SMALL)
def test_a_classifier_learns_from_its_whole_model(kind: str):
    config = AutoConfig.for_model(kind, **SMALL[kind], num_labels=5)
    assert "image-classification" in workloads_of(config)
    model = build_model(config, "image-classification")
    answer = model(pixel_values=torch.randn(2, 3, 32, 32), labels=torch.tensor([0, 4]))
    answer.loss.backward()
    assert answer.logits.shape == (2, 5)
    idle = [name for name, p in model.named_parameters() if p.grad is None]
    assert all("mask_token" in name or "layer_norm" in name for name in idle)
