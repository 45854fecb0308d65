"""timm's resnet50, compiled, in bfloat16, channels last."""

import timm
import torch

model = timm.create_model("resnet50").cuda().to(memory_format=torch.channels_last)
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(8):
    images = torch.randn(64, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (64,), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(compiled(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
