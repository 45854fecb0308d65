"""A plain training loop as people write it: .cuda(), autocast, a loss scaler, clipping, printing."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

assert torch.cuda.is_available()
device = torch.device("cuda:0")
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + self.out(y)
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, vocabulary=1000, width=128, layers=2, heads=4, length=64):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1).float(), targets.flatten())


model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
scaler = torch.amp.GradScaler("cuda")
data = torch.utils.data.TensorDataset(torch.randint(0, 1000, (256, 65)))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, pin_memory=True, num_workers=2)
for step, (rows,) in enumerate(loader):
    rows = rows.to(device, non_blocking=True)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(rows[:, :-1], rows[:, 1:])
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    print(f"step {step} loss {loss.item():.3f} {torch.cuda.max_memory_allocated()} {loss.device} {loss.is_cuda}")
    assert loss.is_cuda, sys.exit(7)
    assert str(next(model.parameters()).device) == "cuda:0"
    assert torch.cuda.get_device_capability() == torch.cuda.get_device_capability(0)
