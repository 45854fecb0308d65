"""Burgers' equation by a network that is held to it: second derivatives by autograd, Adam, float32."""

import torch
from torch import nn


class Network(nn.Module):
    """Place and time to speed."""

    def __init__(self, width=256, depth=8):
        super().__init__()
        parts = [nn.Linear(2, width), nn.Tanh()]
        for _ in range(depth - 1):
            parts += [nn.Linear(width, width), nn.Tanh()]
        self.layers = nn.Sequential(*parts, nn.Linear(width, 1))
        for part in self.layers:
            if isinstance(part, nn.Linear):
                nn.init.xavier_normal_(part.weight)
                nn.init.zeros_(part.bias)

    def forward(self, x, t):
        """(points, 1) twice -> (points, 1)."""
        return self.layers(torch.cat([x, t], 1))


def slope(of, by):
    """d of / d by, to be derived again."""
    return torch.autograd.grad(of, by, grad_outputs=torch.ones_like(of), create_graph=True)[0]


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = Network().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
start = (torch.rand(20_000, 1, device=device) * 2 - 1, torch.zeros(20_000, 1, device=device))
for step in range(8):
    x = (torch.rand(100_000, 1, device=device) * 2 - 1).requires_grad_()
    t = torch.rand(100_000, 1, device=device).requires_grad_()
    u = model(x, t)
    u_x, u_t = slope(u, x), slope(u, t)
    residual = u_t + u * u_x - 0.01 / torch.pi * slope(u_x, x)
    loss = (residual**2).mean() + ((model(*start) + torch.sin(torch.pi * start[0])) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 0:
        print(step, loss.item())
