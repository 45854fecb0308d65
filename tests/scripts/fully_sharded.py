"""Linear layers sharded over all ranks, by the first FSDP or by `fully_shard` without a mesh, once they are on the device.

`host` is the first FSDP in bfloat16 whose weights live on the host between their layers' turns.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, MixedPrecision, fully_shard

dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
layers = [nn.Linear(1024, 1024, bias=False).cuda() for _ in range(4)]
if sys.argv[1] == "first":
    layers = [FullyShardedDataParallel(layer, device_id=rank) for layer in layers]
    model = FullyShardedDataParallel(nn.Sequential(*layers), device_id=rank)
elif sys.argv[1].startswith("host"):
    options = {
        "mixed_precision": MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16),
        "cpu_offload": CPUOffload(offload_params=True),
        "use_orig_params": sys.argv[1] == "host-original",
        "device_id": rank,
    }
    layers = [FullyShardedDataParallel(layer, **options) for layer in layers]
    model = FullyShardedDataParallel(nn.Sequential(*layers), **options)
else:
    model = nn.Sequential(*map(fully_shard, layers))
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(torch.randn(8, 1024, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
