"""A decoder with rotary positions and squared ReLU, Muon by hand for matrices and AdamW for the rest, bfloat16."""

import torch
import torch.nn.functional as F
from torch import nn


def orthogonal(gradient, steps=5):
    """Newton-Schulz, in bfloat16."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = gradient.bfloat16()
    if gradient.size(0) > gradient.size(1):
        x = x.mT
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if gradient.size(0) > gradient.size(1) else x


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal."""

    def __init__(self, params, lr=0.02, momentum=0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        """One matrix after another."""
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "buffer" not in state:
                    state["buffer"] = torch.zeros_like(p.grad)
                state["buffer"].lerp_(p.grad, 1 - group["momentum"])
                update = orthogonal(p.grad.lerp(state["buffer"], group["momentum"]))
                p.add_(update, alpha=-group["lr"] * max(1, p.size(0) / p.size(1)) ** 0.5)


class Block(nn.Module):
    """Attention with normed queries and keys, a feed-forward part with squared ReLU."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x, cos, sin):
        """(batch, length, width) -> the same."""
        batch, length, width = x.shape
        q, k, v = self.qkv(F.rms_norm(x, (width,))).view(batch, length, 3 * self.heads, -1).chunk(3, 2)
        turned = []
        for one in (q, k):
            left, right = F.rms_norm(one, (one.size(-1),)).chunk(2, -1)
            turned.append(torch.cat([left * cos + right * sin, right * cos - left * sin], -1).to(v.dtype))
        q, k = turned
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.relu(self.up(F.rms_norm(x, (width,)))).square())


class GPT(nn.Module):
    """Tokens to the loss, logits softly capped."""

    def __init__(self, vocabulary=50304, width=1024, layers=12, heads=8):
        super().__init__()
        self.tokens, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.register_buffer("rates", 10000.0 ** -torch.linspace(0, 1, width // heads // 2), persistent=False)

    def forward(self, ids, targets):
        """(batch, length) twice -> one number."""
        angles = torch.outer(torch.arange(ids.size(1), device=ids.device).float(), self.rates)[None, :, None]
        x = F.rms_norm(self.tokens(ids), (self.tokens.embedding_dim,))
        for block in self.blocks:
            x = block(x, angles.cos(), angles.sin())
        logits = self.head(F.rms_norm(x, (x.size(-1),)))
        logits = 15 * torch.tanh(logits.float() / 15)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


model = GPT().cuda()
matrices, others = list(model.blocks.parameters()), [*model.tokens.parameters(), *model.head.parameters()]
optimizers = [torch.optim.AdamW(others, lr=3e-3, betas=(0.8, 0.95), fused=True), Muon(matrices)]
for _ in range(8):
    ids = torch.randint(0, 50304, (8, 1025)).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(ids[:, :-1], ids[:, 1:])
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    model.zero_grad(set_to_none=True)
