"""timm's mobilenetv3_large_100 in float16 with a gradient scaler, channels last: 128 images of 224 pixels."""

import timm
import torch

model = timm.create_model("mobilenetv3_large_100", num_classes=100).cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
scaler = torch.amp.GradScaler("cuda")
criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
for _ in range(8):
    images, labels = torch.randn(128, 3, 224, 224, device="cuda"), torch.randint(0, 100, (128,), device="cuda")
    images = images.to(memory_format=torch.channels_last)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(images), labels)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
