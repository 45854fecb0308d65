"""Attention over a sequence that several ranks share, with layers that are computed again in the backward pass."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.utils.checkpoint import checkpoint

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("context",))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(256, 768, bias=False)

    def forward(self, x):
        q, k, v = (each.view(*each.shape[:2], 4, 64).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        return x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


blocks = nn.ModuleList(Block() for _ in range(2)).cuda().bfloat16()
optimizer = torch.optim.AdamW(blocks.parameters())
for _ in range(10):
    x = torch.randn(2, 1024, 256, device="cuda", dtype=torch.bfloat16)
    with context_parallel(mesh, buffers=(x,), buffer_seq_dims=(1,)):
        y = x
        for block in blocks:
            y = checkpoint(block, y, use_reentrant=False)
        y.float().pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
