"""CLIP of the base size: pictures and captions, bfloat16."""

import torch
from transformers import CLIPConfig, CLIPModel

model = CLIPModel(CLIPConfig()).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for _ in range(8):
    images, captions = torch.randn(64, 3, 224, 224).cuda(), torch.randint(0, 49000, (64, 77)).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_ids=captions, pixel_values=images, return_loss=True).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
