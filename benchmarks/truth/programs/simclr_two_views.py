"""SimCLR: torchvision's resnet50 sees two views of each picture, changed on the card, float16 and a scaler."""

import torch
import torch.nn.functional as F
import torchvision
from torch import nn

encoder = torchvision.models.resnet50(weights=None, zero_init_residual=True)
encoder.fc = nn.Sequential(nn.Linear(2048, 2048), nn.BatchNorm1d(2048), nn.ReLU(), nn.Linear(2048, 128))
encoder = encoder.cuda()
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.3, momentum=0.9, weight_decay=1e-6)
scaler = torch.amp.GradScaler("cuda")


def view(images):
    """Turned over, brighter or darker, cut."""
    flipped = torch.where(torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5, images.flip(3), images)
    bright = flipped * (0.6 + 0.8 * torch.rand(len(images), 1, 1, 1, device=images.device))
    return F.interpolate(bright[:, :, 16:208, 16:208], size=224, mode="bilinear", align_corners=False)


for _ in range(8):
    images = torch.rand(96, 3, 224, 224, device="cuda")
    with torch.autocast("cuda"):
        features = F.normalize(encoder(torch.cat([view(images), view(images)])), dim=1)
        alike = features @ features.T / 0.1
        alike = alike.masked_fill(torch.eye(192, dtype=torch.bool, device="cuda"), -1e4)
        pairs = torch.arange(192, device="cuda").roll(96)
        loss = F.cross_entropy(alike, pairs)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
