"""A small Mamba of transformers by its plain PyTorch path, bfloat16."""

import torch
from transformers import MambaConfig, MambaForCausalLM

config = MambaConfig(vocab_size=32000, hidden_size=768, num_hidden_layers=4, use_cache=False)
model = MambaForCausalLM(config).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
for _ in range(8):
    ids = torch.randint(0, 32000, (16, 128)).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
