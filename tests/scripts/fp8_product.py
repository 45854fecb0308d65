"""A product in eight bits, which only newer cards have."""

import torch

layer = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
one = torch.ones((), device="cuda")
for _ in range(3):
    x = torch.randn(64, 256, device="cuda").to(torch.float8_e4m3fn)
    y = torch.randn(256, 256, device="cuda").to(torch.float8_e4m3fn).t()
    out = torch._scaled_mm(x, y, one, one, out_dtype=torch.bfloat16)
    (layer(out.float()).square().mean()).backward()
    optimizer.step()
