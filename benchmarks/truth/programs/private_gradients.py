"""Differential privacy by torch.func: a gradient for each sample, clipped, noised; a small network, float32."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(64, 128, 3, padding=1), nn.GroupNorm(8, 128), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(128 * 16, 256), nn.ReLU(), nn.Linear(256, 10),
).cuda()  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(parameters, image, label):
    """One sample's loss."""
    return F.cross_entropy(functional_call(model, parameters, (image[None],)), label[None])


per_sample = vmap(grad(loss_of), in_dims=(None, 0, 0))
for _ in range(8):
    images, labels = torch.randn(1024, 3, 32, 32).cuda(), torch.randint(0, 10, (1024,)).cuda()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    gradients = per_sample(parameters, images, labels)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
    factors = (1.0 / (norms + 1e-6)).clamp(max=1.0)
    for name, p in model.named_parameters():
        total = torch.einsum("n,n...->...", factors, gradients[name])
        p.grad = (total + torch.randn_like(total)) / 1024
    optimizer.step()
    optimizer.zero_grad()
