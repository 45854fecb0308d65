"""The Trainer with an optimizer of bitsandbytes, whose name is the argument."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

config = LlamaConfig(
    hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
    vocab_size=2048,
)  # fmt: skip
rows = [{"input_ids": torch.arange(64), "labels": torch.arange(64)} for _ in range(200)]
arguments = TrainingArguments("out", optim=sys.argv[1], per_device_train_batch_size=8, report_to="none", bf16=True)
Trainer(LlamaForCausalLM(config), arguments, train_dataset=rows).train()
