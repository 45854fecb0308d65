"""A small U-Net over volumes, float16 with a gradient scaler."""

import torch
from torch import nn


def twice(before, after):
    """Two convolutions of three voxels with instance norm."""
    parts = []
    for width in (before, after):
        parts += [nn.Conv3d(width, after, 3, padding=1), nn.InstanceNorm3d(after, affine=True), nn.LeakyReLU(0.01)]
    return nn.Sequential(*parts)


class UNet(nn.Module):
    """Volumes to classes of voxels."""

    def __init__(self, widths=(32, 64, 128, 256)):
        super().__init__()
        self.down = nn.ModuleList([twice(a, b) for a, b in zip((1, *widths), widths, strict=False)])
        pairs = list(zip(widths[::-1], widths[-2::-1], strict=False))
        self.wider = nn.ModuleList([nn.ConvTranspose3d(a, b, 2, stride=2) for a, b in pairs])
        self.up = nn.ModuleList([twice(a, b) for a, b in pairs])
        self.head, self.pool = nn.Conv3d(widths[0], 4, 1), nn.MaxPool3d(2)

    def forward(self, x):
        """(batch, 1, depth, height, width) -> (batch, 4, the same)."""
        kept = []
        for index, part in enumerate(self.down):
            x = part(x if index == 0 else self.pool(x))
            kept.append(x)
        kept.pop()
        for wider, part in zip(self.wider, self.up, strict=True):
            x = part(torch.cat([wider(x), kept.pop()], 1))
        return self.head(x)


model = UNet().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
for _ in range(8):
    scan, labels = torch.randn(2, 1, 96, 96, 96, device="cuda"), torch.randint(0, 4, (2, 96, 96, 96), device="cuda")
    with torch.autocast("cuda"):
        loss = nn.functional.cross_entropy(model(scan), labels)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
