"""SegFormer's b2 over pictures of 512 pixels with 150 classes, bfloat16."""

import torch
from transformers import SegformerConfig, SegformerForSemanticSegmentation

config = SegformerConfig(
    depths=[3, 4, 6, 3], hidden_sizes=[64, 128, 320, 512], decoder_hidden_size=768, num_labels=150,
    semantic_loss_ignore_index=255,
)  # fmt: skip
model = SegformerForSemanticSegmentation(config).cuda().train()
head = list(model.decode_head.parameters())
optimizer = torch.optim.AdamW(
    [{"params": model.segformer.parameters(), "lr": 6e-5}, {"params": head, "lr": 6e-4}], weight_decay=0.01
)
scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=8)
for _ in range(8):
    images = torch.randn(12, 3, 512, 512, device="cuda")
    masks = torch.randint(0, 150, (12, 512, 512), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(pixel_values=images, labels=masks).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
