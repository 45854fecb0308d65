"""A decoder with FlexAttention over packed documents, compiled block by block, bfloat16."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


class Block(nn.Module):
    """Grouped-query attention within a document, a gated feed-forward part."""

    def __init__(self, width, heads, groups):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.kv = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x, mask):
        """(batch, length, width) -> the same."""
        batch, length, width = x.shape
        hidden = self.norm_1(x)
        q = self.q(hidden).view(batch, length, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(hidden).view(batch, length, 2 * self.groups, self.size).transpose(1, 2).chunk(2, 1)
        y = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        hidden = self.norm_2(x)
        return x + self.down(F.silu(self.gate(hidden)) * self.up(hidden))


class Decoder(nn.Module):
    """Tokens to logits."""

    def __init__(self, vocabulary=32000, width=1024, layers=12, heads=16, groups=4):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([Block(width, heads, groups) for _ in range(layers)])
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids, mask):
        """(batch, length) -> (batch, length, vocabulary)."""
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


model = Decoder().to("cuda", torch.bfloat16)
for block in model.blocks:
    block.compile()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)
for _ in range(8):
    ids = torch.randint(0, 32000, (2, 4097), device="cuda")
    documents = torch.arange(4096, device="cuda") // 1024

    def visible(batch, head, query, key, documents=documents):
        """Earlier tokens of the same document."""
        return (query >= key) & (documents[query] == documents[key])

    mask = create_block_mask(visible, None, None, 4096, 4096, device="cuda")
    loss = F.cross_entropy(model(ids[:, :-1], mask).flatten(0, 1).float(), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
