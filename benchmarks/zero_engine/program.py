"""A LLaMA under DeepSpeed's engine, as its documentation starts one; the configuration is in the environment."""

import json
import os

import deepspeed
import torch
from transformers import LlamaConfig, LlamaForCausalLM

case = json.loads(os.environ["DEEPSPEED_CASE"])
zero, batch = case["zero"], case["batch"]
config = {
    "train_micro_batch_size_per_gpu": batch["micro_batch_size"],
    "gradient_accumulation_steps": batch["gradient_accumulation_steps"],
    "bf16": {"enabled": True},
    "zero_optimization": zero,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
}
architecture = LlamaConfig(**case["model"])
with deepspeed.zero.Init(config_dict_or_path=config, enabled=zero["stage"] == 3):
    model = LlamaForCausalLM(architecture)
if case["recomputes"]:
    model.gradient_checkpointing_enable()
model.train()
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
shape = batch["micro_batch_size"], batch["sequence_length"]
for _ in range(20 * batch["gradient_accumulation_steps"]):
    ids = torch.randint(0, architecture.vocab_size, shape, device=engine.device)
    engine.backward(engine(input_ids=ids, labels=ids, use_cache=False).loss)
    engine.step()
