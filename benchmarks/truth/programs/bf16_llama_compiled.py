"""A LLaMA of one billion weights in bfloat16, compiled: what float8_llama.py is beside."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=32000, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
    num_key_value_heads=8,
)  # fmt: skip
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).train()
for layer in model.model.layers:
    layer.compile()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for _ in range(8):
    ids = torch.randint(0, 32000, (4, 2048), device="cuda")
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
