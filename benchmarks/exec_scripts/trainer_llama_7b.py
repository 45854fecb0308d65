"""Full fine-tuning of a LLaMA of 7 billion parameters with the Trainer of transformers."""

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_config(LlamaConfig(), dtype=torch.bfloat16)
rows = [{"input_ids": (ids := torch.randint(5, 32_000, (2048,))), "labels": ids} for _ in range(64)]
arguments = TrainingArguments(
    "out", per_device_train_batch_size=1, max_steps=10, bf16=True, gradient_checkpointing=True, report_to=[],
    logging_steps=1, save_strategy="no", disable_tqdm=True,
)  # fmt: skip
Trainer(model=model, args=arguments, train_dataset=rows).train()
