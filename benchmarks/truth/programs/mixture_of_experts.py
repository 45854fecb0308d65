"""A small Qwen3 with 16 experts, four for each token, bfloat16 throughout."""

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

config = Qwen3MoeConfig(
    vocab_size=32000, hidden_size=1024, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=4, head_dim=64,
    intermediate_size=2816, moe_intermediate_size=704, num_experts=16, num_experts_per_tok=4,
)  # fmt: skip
model = Qwen3MoeForCausalLM(config).to("cuda", torch.bfloat16).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for _ in range(8):
    ids = torch.randint(0, 32000, (4, 1024), device="cuda")
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
