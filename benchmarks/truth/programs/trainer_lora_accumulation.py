"""The Trainer with LoRA on a small LLaMA in bfloat16: four micro-batches, recomputation."""

import tempfile

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

config = LlamaConfig(
    vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
    num_key_value_heads=4,
)  # fmt: skip
model = LlamaForCausalLM(config).to(torch.bfloat16)
model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))


class Texts(torch.utils.data.Dataset):
    """Random ids."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        ids = torch.randint(5, 30000, (512,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=4, gradient_accumulation_steps=4, max_steps=6, bf16=True, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, gradient_checkpointing=True,
    )  # fmt: skip
    Trainer(model=model, args=arguments, train_dataset=Texts()).train()
