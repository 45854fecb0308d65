"""A compiled loss with a number of its own, around a model that is not compiled."""

import torch
from torch import nn
from torch.nn import functional


@torch.compile(mode="max-autotune-no-cudagraphs", dynamic=False)
def weighted(logits, labels):
    weights = torch.ones(logits.shape[-1], device="cuda")
    losses = functional.cross_entropy(logits.float(), labels, weight=weights, reduction="none")
    return (losses * (labels != 3)).mean()


net = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 1000)).to("cuda")
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(20):
    ids = torch.randint(0, 1000, (8, 32)).to("cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = net(ids)
    loss = weighted(logits.view(-1, 1000), ids.view(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
