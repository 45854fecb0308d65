"""The same decoder, compiled, in bfloat16."""

import torch
import torch.nn.functional as F
from gpt_fp16_scaler import GPT

torch.set_float32_matmul_precision("high")
model = GPT().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
compiled = torch.compile(model)
for _ in range(8):
    ids = torch.randint(0, 50304, (12, 1025)).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(compiled(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
