"""The Trainer of transformers with evaluation, metrics in numpy and logging."""

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

config = BertConfig(num_labels=3, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
model = BertForSequenceClassification(config)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(5, 30000, (32,))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor(index % 3)}


def metrics(prediction):
    return {"accuracy": float((np.argmax(prediction.predictions, -1) == prediction.label_ids).mean())}


arguments = TrainingArguments(
    "out", per_device_train_batch_size=8, max_steps=30, bf16=True, logging_steps=1, report_to=[], eval_strategy="steps",
    eval_steps=2, save_strategy="no", disable_tqdm=True,
)  # fmt: skip
assert str(arguments.device).startswith("cuda")
Trainer(model, arguments, train_dataset=Rows(), eval_dataset=Rows(), compute_metrics=metrics).train()
