"""timm's efficientnet_b0 in float32: 48 images of 224 pixels."""

import timm
import torch

model = timm.create_model("efficientnet_b0", num_classes=100).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
for _ in range(8):
    images, labels = torch.randn(48, 3, 224, 224, device="cuda"), torch.randint(0, 100, (48,), device="cuda")
    loss = criterion(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
