"""A wide MLP fits 200,000 rows whole by L-BFGS with a line search, float32."""

import torch
from torch import nn

rows, answers = torch.randn(200_000, 128).cuda(), torch.randn(200_000, 1).cuda()
model = nn.Sequential(
    nn.Linear(128, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 512), nn.Tanh(),
    nn.Linear(512, 1),
).cuda()  # fmt: skip
optimizer = torch.optim.LBFGS(model.parameters(), lr=1, max_iter=4, history_size=10, line_search_fn="strong_wolfe")


def closure():
    """The loss over everything, with its gradient."""
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(rows), answers)
    loss.backward()
    return loss


for _ in range(8):
    optimizer.step(closure)
