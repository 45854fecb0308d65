"""A step that needs more memory than small cards have."""

import torch

held = torch.zeros(20, 2**28, device="cuda")  # 20 GiB
layer = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(5):
    layer(torch.randn(8192, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
