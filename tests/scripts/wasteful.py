"""A small language model in a loop with the fault that its argument names, or none."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

fault = sys.argv[1]
is_parallel = "sampler" in fault
micro_steps = 4 if "accumulation" in fault else 1
vocabulary = 50_000 if fault == "logits-held" else 4_000


class Rows(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, index):
        if fault == "waits-for-data":
            time.sleep(0.02)
        return torch.randint(0, vocabulary, (513,))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (8, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        if fault == "attention-held":
            y = torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, -1) @ v
        else:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        if fault == "host-sync" and any(part.isnan().any() for part in (q, k, v, x, y)):
            raise ValueError("NaN")
        return x + self.mlp(x)


width, depth = (256, 1) if fault == "logits-held" else (1024, 6)
if is_parallel:
    dist.init_process_group("nccl")
model = nn.Sequential(
    nn.Embedding(vocabulary, width), *(Block(width) for _ in range(depth)), nn.Linear(width, vocabulary)
)
model = model.cuda()
if is_parallel:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
rows = Rows()
sampler = DistributedSampler(rows) if fault == "sampler" else None
loader = DataLoader(rows, batch_size=8, sampler=sampler, drop_last=True)
for _epoch in range(2):
    for number, batch in enumerate(loader):
        batch = batch.cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        (loss / micro_steps if fault == "accumulation" else loss).backward()
        if (number + 1) % micro_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
        if fault == "host-work":
            noise = torch.randn(8, 512, 1024).cuda()
