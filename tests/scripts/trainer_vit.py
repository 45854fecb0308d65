"""Image classification by ViT with the Trainer and its compute_metrics."""

import numpy as np
import torch
from parameter_count import print_parameters
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

config = ViTConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=64)
model = ViTForImageClassification(config)
print_parameters(model)
rows = [{"pixel_values": torch.randn(3, 64, 64), "labels": number % 2} for number in range(32)]


def accuracy(prediction):
    return {"accuracy": float((np.argmax(prediction.predictions, -1) == prediction.label_ids).mean())}


arguments = TrainingArguments(
    "out", per_device_train_batch_size=8, num_train_epochs=4, fp16=True, report_to=[], logging_steps=1, save_strategy="no",
    eval_strategy="epoch",
)  # fmt: skip
Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows[:8], compute_metrics=accuracy).train()
