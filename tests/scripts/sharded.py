"""FSDP2 as torchrun starts it."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (dist.get_world_size(),))
with torch.device("meta"):
    net = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(4)])
for layer in net:
    fully_shard(layer, mesh=mesh)
fully_shard(net, mesh=mesh)
net.to_empty(device="cuda")
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(3):
    net(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(dist.get_rank(), dist.get_world_size(), torch.cuda.max_memory_allocated())
dist.destroy_process_group()
