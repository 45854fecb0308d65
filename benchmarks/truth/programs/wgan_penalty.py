"""WGAN-GP over pictures of 64 pixels: residual networks, a gradient penalty, the critic four times as fast."""

import torch
from torch import nn


class Residual(nn.Module):
    """Two convolutions and a shortcut, to half or to double the size."""

    def __init__(self, before, after, way):
        super().__init__()
        if way == "up":
            norms, size = [nn.BatchNorm2d(before), nn.BatchNorm2d(after)], [nn.Upsample(scale_factor=2), nn.Identity()]
        else:
            norms, size = [nn.GroupNorm(8, before), nn.GroupNorm(8, after)], [nn.Identity(), nn.AvgPool2d(2)]
        self.path = nn.Sequential(
            norms[0], nn.ReLU(), size[0], nn.Conv2d(before, after, 3, padding=1),
            norms[1], nn.ReLU(), nn.Conv2d(after, after, 3, padding=1), size[1],
        )  # fmt: skip
        self.shortcut = nn.Sequential(size[0], nn.Conv2d(before, after, 1), size[1])

    def forward(self, x):
        """(batch, before, n, n) -> (batch, after, n / 2 or 2 n, the same)."""
        return self.path(x) + self.shortcut(x)


generator = nn.Sequential(
    nn.Linear(128, 512 * 16), nn.Unflatten(1, (512, 4, 4)), Residual(512, 512, "up"), Residual(512, 256, "up"),
    Residual(256, 128, "up"), Residual(128, 64, "up"), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 3, 3, padding=1),
    nn.Tanh(),
).cuda()  # fmt: skip
critic = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), Residual(64, 128, "down"), Residual(128, 256, "down"), Residual(256, 512, "down"),
    Residual(512, 512, "down"), nn.Flatten(), nn.Linear(512 * 16, 1),
).cuda()  # fmt: skip
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.0, 0.9))
of_critic = torch.optim.Adam(critic.parameters(), lr=4e-4, betas=(0.0, 0.9))
for _ in range(8):
    real, noise = torch.randn(64, 3, 64, 64, device="cuda"), torch.randn(64, 128, device="cuda")
    with torch.no_grad():
        fake = generator(noise)
    share = torch.rand(64, 1, 1, 1, device="cuda")
    between = (share * real + (1 - share) * fake).requires_grad_()
    slopes = torch.autograd.grad(critic(between).sum(), between, create_graph=True)[0]
    penalty = ((slopes.flatten(1).norm(2, dim=1) - 1) ** 2).mean()
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
    of_critic.zero_grad()
    loss.backward()
    of_critic.step()
    of_generator.zero_grad()
    (-critic(generator(noise)).mean()).backward()
    of_generator.step()
