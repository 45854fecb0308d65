"""The Trainer of transformers: BERT sorts texts in bfloat16."""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Texts(torch.utils.data.Dataset):
    """Random ids."""

    def __len__(self):
        return 512

    def __getitem__(self, index):
        ids = torch.randint(5, 30000, (256,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": index % 3}


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=32, max_steps=8, bf16=True, report_to=[], save_strategy="no",
        logging_strategy="no", disable_tqdm=True, optim="adamw_torch_fused",
    )  # fmt: skip
    Trainer(
        model=BertForSequenceClassification(BertConfig(num_labels=3)), args=arguments, train_dataset=Texts()
    ).train()
