"""A Gemma3 of 0.2 billion weights over one text of 16,384 tokens, sliding windows between whole views, bfloat16."""

import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

config = Gemma3TextConfig(
    vocab_size=32768, hidden_size=1152, intermediate_size=4608, num_hidden_layers=8, num_attention_heads=4,
    num_key_value_heads=1, head_dim=256, sliding_window=1024, max_position_embeddings=32768, use_cache=False,
    attn_implementation="sdpa",
)  # fmt: skip
model = Gemma3ForCausalLM(config).to("cuda", torch.bfloat16).train()
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
for _ in range(8):
    ids = torch.randint(0, 32768, (1, 16384), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
