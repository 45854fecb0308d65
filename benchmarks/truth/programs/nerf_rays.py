"""NeRF: a coarse and a fine network along rays, the second's points drawn where the first saw something, float32."""

import torch
from torch import nn


def waves(x, count):
    """Sines and cosines of doubling frequency, beside x."""
    parts = [x]
    for n in range(count):
        parts += [torch.sin(2.0**n * x), torch.cos(2.0**n * x)]
    return torch.cat(parts, -1)


class Field(nn.Module):
    """Points and directions to color and density."""

    def __init__(self, width=256):
        super().__init__()
        inputs = [63, *[width] * 4, width + 63, *[width] * 2]
        self.layers = nn.ModuleList([nn.Linear(before, width) for before in inputs])
        self.density, self.feature = nn.Linear(width, 1), nn.Linear(width, width)
        self.direction, self.color = nn.Linear(width + 27, width // 2), nn.Linear(width // 2, 3)

    def forward(self, points, directions):
        """(rays, samples, 3), (rays, 3) -> (rays, samples, 3), (rays, samples)."""
        start = hidden = waves(points, 10)
        for index, layer in enumerate(self.layers):
            hidden = torch.relu(layer(torch.cat([start, hidden], -1) if index == 5 else hidden))
        toward = waves(directions, 4)[:, None].expand(-1, points.shape[1], -1)
        side = torch.relu(self.direction(torch.cat([self.feature(hidden), toward], -1)))
        return torch.sigmoid(self.color(side)), torch.relu(self.density(hidden)).squeeze(-1)


def rendered(field, origins, directions, depths):
    """Colors of the rays, and how much each sample counts."""
    colors, density = field(origins[:, None] + directions[:, None] * depths[..., None], directions)
    gaps = torch.cat([depths[:, 1:] - depths[:, :-1], torch.full_like(depths[:, :1], 1e10)], 1)
    alpha = 1 - torch.exp(-density * gaps)
    seen = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
    weights = alpha * seen
    return (weights[..., None] * colors).sum(1), weights


def drawn(edges, weights, count):
    """Depths drawn after the weights."""
    share = (weights + 1e-5) / (weights + 1e-5).sum(1, keepdim=True)
    steps = torch.cat([torch.zeros_like(share[:, :1]), torch.cumsum(share, 1)], 1)
    u = torch.rand(len(share), count, device=share.device)
    above = torch.searchsorted(steps, u, right=True).clamp(1, steps.shape[1] - 1)
    low, high = steps.gather(1, above - 1), steps.gather(1, above)
    near, far = edges.gather(1, above - 1), edges.gather(1, above)
    gap = torch.where(high - low < 1e-5, torch.ones_like(low), high - low)
    return near + (u - low) / gap * (far - near)


coarse, fine = Field().cuda(), Field().cuda()
optimizer = torch.optim.Adam([*coarse.parameters(), *fine.parameters()], lr=5e-4)
for step in range(8):
    origins, wanted = torch.randn(4096, 3).cuda(), torch.rand(4096, 3).cuda()
    directions = nn.functional.normalize(torch.randn(4096, 3), dim=1).cuda()
    depths = torch.linspace(2, 6, 64, device="cuda") + torch.rand(4096, 64, device="cuda") * 4 / 64
    first, weights = rendered(coarse, origins, directions, depths)
    middle = (depths[:, 1:] + depths[:, :-1]) / 2
    more = drawn(middle, weights[:, 1:-1].detach(), 128)
    second, _ = rendered(fine, origins, directions, torch.sort(torch.cat([depths, more], 1), 1).values)
    loss = ((first - wanted) ** 2).mean() + ((second - wanted) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] = 5e-4 * 0.1 ** (step / 250_000)
