"""Plain fp32 loops on whichever device there is: `bert`, `llama`, `vit`, `resnet` or `clip`."""

import sys

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    CLIPConfig,
    CLIPModel,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)  # fmt: skip

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
DRY = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
kind = sys.argv[1]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ids = torch.randint(5, 100, (4, 24))
mask = torch.ones_like(ids)
mask[1, 15:] = 0
pixels = torch.randn(4, 3, 32, 32)
text = {"input_ids": ids, "attention_mask": mask}


def choose():
    match kind:
        case "bert":
            batch = {**text, "labels": torch.arange(4) % 2}
            return BertForSequenceClassification(BertConfig(**SMALL, **DRY, vocab_size=128)), batch
        case "llama":
            return LlamaForCausalLM(LlamaConfig(**SMALL, vocab_size=128)), {**text, "labels": ids}
        case "vit":
            config = ViTConfig(**SMALL, **DRY, image_size=32, patch_size=8)
            return ViTForImageClassification(config), {"pixel_values": pixels, "labels": torch.arange(4) % 2}
        case "resnet":
            config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic")
            return ResNetForImageClassification(config), {"pixel_values": pixels, "labels": torch.arange(4) % 2}
        case "clip":
            vision = {**SMALL, "image_size": 32, "patch_size": 8}
            config = CLIPConfig(text_config={**SMALL, "vocab_size": 128}, vision_config=vision, projection_dim=16)
            return CLIPModel(config), {**text, "pixel_values": pixels, "return_loss": True}


model, batch = choose()
model.to(device).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(4):
    moved = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
    loss = model(**moved).loss
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"loss {loss.item():.4f}")
