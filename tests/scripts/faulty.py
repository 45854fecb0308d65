"""A loop with the fault that its argument names, or none."""

import sys

import torch
from torch import nn

fault = sys.argv[1]
net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).cuda()
unused = nn.Linear(512, 512).cuda()
parameters = [*net.parameters(), *(unused.parameters() if fault == "no-gradient" else ())]
optimizer = torch.optim.AdamW(parameters)
losses, rows = [], torch.randn(64, 512)
for _ in range(8):
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=fault != "fp32-product"):
        output = net(rows.cuda())
        loss = output.square().mean()
    losses.append(output if fault == "grows" else loss.item())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
