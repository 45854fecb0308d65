"""A LLaMA of 0.3 billion weights in bfloat16 with 8-bit AdamW."""

import bitsandbytes
import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=16, num_attention_heads=16,
    num_key_value_heads=8,
)  # fmt: skip
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).train()
optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=1e-4)
for _ in range(8):
    ids = torch.randint(0, 32000, (4, 2048), device="cuda")
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
