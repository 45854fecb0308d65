"""torchvision's r3d_18 over clips of 16 frames, bfloat16, channels last in three dimensions."""

import torch
from torchvision.models.video import r3d_18

model = r3d_18(weights=None, num_classes=400).cuda().to(memory_format=torch.channels_last_3d)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
for _ in range(8):
    clips = torch.randn(48, 3, 16, 112, 112, device="cuda").to(memory_format=torch.channels_last_3d)
    labels = torch.randint(0, 400, (48,)).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(clips), labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    scheduler.step()
