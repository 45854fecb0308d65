"""A detector of one stage with three scales over pictures of 640 pixels, float16 with a gradient scaler, Nesterov."""

import torch
import torch.nn.functional as F
from torch import nn


def conv(before, after, size=3, stride=1):
    """Convolution, batch norm, SiLU."""
    return nn.Sequential(
        nn.Conv2d(before, after, size, stride, (size - 1) // 2, bias=False),
        nn.BatchNorm2d(after, eps=1e-3, momentum=0.03),
        nn.SiLU(inplace=True),
    )


class Bottleneck(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second = conv(width, width, 1), conv(width, width, 3)

    def forward(self, x):
        """The same shape."""
        return x + self.second(self.first(x))


class Split(nn.Module):
    """Bottlenecks on one half, a cross-stage path on the other."""

    def __init__(self, before, after, count):
        super().__init__()
        self.left, self.right, self.join = conv(before, after // 2, 1), conv(before, after // 2, 1), conv(after, after)
        self.parts = nn.Sequential(*[Bottleneck(after // 2) for _ in range(count)])

    def forward(self, x):
        """(batch, before, height, width) -> (batch, after, height, width)."""
        return self.join(torch.cat([self.parts(self.left(x)), self.right(x)], 1))


class Pyramid(nn.Module):
    """Three poolings of five pixels after each other, joined."""

    def __init__(self, width):
        super().__init__()
        self.first, self.last = conv(width, width // 2, 1), conv(width * 2, width, 1)

    def forward(self, x):
        """The same shape."""
        kept = [self.first(x)]
        for _ in range(3):
            kept.append(F.max_pool2d(kept[-1], 5, 1, 2))
        return self.last(torch.cat(kept, 1))


class Detector(nn.Module):
    """Pictures to (box, objectness, classes) of each cell of three grids."""

    def __init__(self, width=48, classes=80):
        super().__init__()
        w = width
        self.stem = nn.Sequential(conv(3, w, 6, 2), conv(w, 2 * w, 3, 2), Split(2 * w, 2 * w, 2))
        self.third = nn.Sequential(conv(2 * w, 4 * w, 3, 2), Split(4 * w, 4 * w, 4))
        self.fourth = nn.Sequential(conv(4 * w, 8 * w, 3, 2), Split(8 * w, 8 * w, 6))
        self.fifth = nn.Sequential(conv(8 * w, 16 * w, 3, 2), Split(16 * w, 16 * w, 2), Pyramid(16 * w))
        self.up_4, self.up_3 = Split(24 * w, 8 * w, 2), Split(12 * w, 4 * w, 2)
        self.heads = nn.ModuleList([nn.Conv2d(n * w, 5 + classes, 1) for n in (4, 8, 16)])

    def forward(self, x):
        """(batch, 3, 640, 640) -> (batch, cells, 85)."""
        third = self.third(self.stem(x))
        fourth = self.fourth(third)
        fifth = self.fifth(fourth)
        fourth = self.up_4(torch.cat([F.interpolate(fifth, scale_factor=2), fourth], 1))
        third = self.up_3(torch.cat([F.interpolate(fourth, scale_factor=2), third], 1))
        pairs = zip(self.heads, (third, fourth, fifth), strict=True)
        return torch.cat([head(scale).flatten(2).transpose(1, 2) for head, scale in pairs], 1)


def overlap_loss(predicted, wanted):
    """One less the intersection over union of boxes (x, y, width, height)."""
    low = torch.maximum(predicted[..., :2] - predicted[..., 2:] / 2, wanted[..., :2] - wanted[..., 2:] / 2)
    high = torch.minimum(predicted[..., :2] + predicted[..., 2:] / 2, wanted[..., :2] + wanted[..., 2:] / 2)
    inside = (high - low).clamp(0).prod(-1)
    return 1 - inside / (predicted[..., 2:].prod(-1) + wanted[..., 2:].prod(-1) - inside + 1e-7)


model = Detector().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.937, weight_decay=5e-4, nesterov=True)
scaler = torch.amp.GradScaler("cuda")
pictures = torch.randint(0, 256, (16, 3, 640, 640), dtype=torch.uint8).pin_memory()
for _ in range(8):
    images = pictures.cuda(non_blocking=True).float() / 255
    cells = torch.randint(0, 8400, (16, 20)).cuda()
    boxes, classes = torch.rand(16, 20, 4).cuda(), F.one_hot(torch.randint(0, 80, (16, 20)), 80).float().cuda()
    with torch.autocast("cuda"):
        out = model(images)
        chosen = out.gather(1, cells[..., None].expand(-1, -1, 85))
        objects = torch.zeros_like(out[..., 4]).scatter_(1, cells, 1.0)
        loss = 0.05 * overlap_loss(chosen[..., :4].float().sigmoid(), boxes).mean()
        loss = loss + F.binary_cross_entropy_with_logits(out[..., 4], objects)
        loss = loss + 0.5 * F.binary_cross_entropy_with_logits(chosen[..., 5:], classes)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
