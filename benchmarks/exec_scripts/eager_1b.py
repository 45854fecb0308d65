"""A GPT of 1.3 billion parameters in a plain loop: bf16 autocast, fused AdamW, clipped gradients."""

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

device = "cuda" if torch.cuda.is_available() else "cpu"
model = GPT2LMHeadModel(GPT2Config(n_embd=2048, n_layer=24, n_head=16)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for _ in range(10):
    ids = torch.randint(0, 50_257, (4, 1024)).to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {loss.item():.3f}")
