"""A wide residual network over small pictures with sharpness-aware minimization: two passes a step, float32."""

import torch
from torch import nn


class SAM(torch.optim.Optimizer):
    """Climb to the worst weights nearby, take the gradient there, step from where one was."""

    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, {"rho": rho, **kwargs})
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        """Climb."""
        norms = [p.grad.norm(p=2) for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.norm(torch.stack(norms), p=2)
        for group in self.param_groups:
            scale = group["rho"] / (norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * scale.to(p))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        """Return and step."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        self.zero_grad()


class Block(nn.Module):
    """Norm first, two convolutions, a shortcut."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.norm_1, self.norm_2 = nn.BatchNorm2d(before), nn.BatchNorm2d(after)
        self.conv_1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv_2, self.dropout = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.Dropout(0.1)
        self.shortcut = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x):
        """(batch, before, height, width) -> (batch, after, height / stride, width / stride)."""
        hidden = torch.relu(self.norm_1(x))
        shortcut = x if isinstance(self.shortcut, nn.Identity) else self.shortcut(hidden)
        return shortcut + self.conv_2(self.dropout(torch.relu(self.norm_2(self.conv_1(hidden)))))


def wide_resnet(depth=16, factor=8, classes=100):
    """WRN-16-8."""
    blocks, before, count = [nn.Conv2d(3, 16, 3, 1, 1, bias=False)], 16, (depth - 4) // 6
    for stage, width in enumerate((16, 32, 64)):
        for index in range(count):
            blocks.append(Block(before, width * factor, 2 if stage and index == 0 else 1))
            before = width * factor
    pooled = [nn.BatchNorm2d(before), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*blocks, *pooled, nn.Linear(before, classes))


torch.backends.cudnn.benchmark = True
model = wide_resnet().cuda()
optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.1, lr=0.1, momentum=0.9, weight_decay=5e-4)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
for _ in range(8):
    images, labels = torch.randn(256, 3, 32, 32).cuda(), torch.randint(0, 100, (256,)).cuda()
    criterion(model(images), labels).backward()
    optimizer.first_step()
    criterion(model(images), labels).backward()
    optimizer.second_step()
