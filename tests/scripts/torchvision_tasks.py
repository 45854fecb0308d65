"""torchvision as in its reference loops: `detection` (Faster R-CNN, losses as a dictionary) or `segmentation`."""

import math
import sys

import torch
from parameter_count import print_parameters
from torch import nn
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn
from torchvision.models.segmentation import lraspp_mobilenet_v3_large

kind = sys.argv[1]
device = torch.device("cuda")


def sample(number):
    image = torch.rand(3, 160, 160)
    if kind == "segmentation":
        return image, torch.randint(0, 4, (160, 160))
    return image, {"boxes": torch.tensor([[10.0, 10.0, 60.0, 70.0]]), "labels": torch.tensor([1 + number % 3])}


loader = torch.utils.data.DataLoader(
    [sample(n) for n in range(48)], batch_size=4, shuffle=True, collate_fn=lambda rows: tuple(zip(*rows, strict=True))
)
if kind == "detection":
    model = fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, num_classes=4)
else:
    model = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4)
model.to(device).train()
print_parameters(model)
parameters = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.SGD(parameters, lr=0.005, momentum=0.9, weight_decay=0.0005)
scaler = torch.amp.GradScaler("cuda")
for images, targets in loader:
    with torch.amp.autocast("cuda"):
        if kind == "detection":
            images = [image.to(device) for image in images]
            targets = [{name: value.to(device) for name, value in target.items()} for target in targets]
            losses = model(images, targets)
            loss = sum(losses.values())
        else:
            output = model(torch.stack(images).to(device))
            loss = nn.functional.cross_entropy(output["out"], torch.stack(targets).to(device), ignore_index=255)
    if not math.isfinite(loss.item()):
        sys.exit(f"Loss is {loss.item()}, stopping training")
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
