"""A loop that catches running out of memory and halves its batch."""

import torch
from torch import nn

net = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
batch = 1_048_576
while True:
    try:
        for _ in range(2):
            loss = net(torch.randn(batch, 4096, device="cuda")).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        break
    except torch.cuda.OutOfMemoryError as error:
        print("caught", error)
        loss = None
        batch //= 2
print("BATCH", batch, torch.cuda.max_memory_allocated() <= torch.cuda.mem_get_info()[1])
