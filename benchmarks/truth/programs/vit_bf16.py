"""timm's vit_base_patch16_224 in bfloat16: 96 images of 224 pixels."""

import timm
import torch

model = timm.create_model("vit_base_patch16_224", num_classes=100).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
for _ in range(8):
    images, labels = torch.randn(96, 3, 224, 224, device="cuda"), torch.randint(0, 100, (96,), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
