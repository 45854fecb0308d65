"""A decoder with tied weights whose logits are made chunk by chunk and again in backward, four micro-batches."""

import contextlib

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class GPT(nn.Module):
    """Tokens to the mean loss."""

    def __init__(self, vocabulary=100_352, width=1024, layers=16, length=1024):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 16, 4 * width, 0.1, F.gelu, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def chunk_loss(self, x, targets):
        """The sum of one chunk's losses."""
        return F.cross_entropy(self.head(x).float(), targets, reduction="sum")

    def forward(self, ids, targets):
        """(batch, length) twice -> one number."""
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        x = self.layers(x, mask=mask, is_causal=True).flatten(0, 1)
        total = 0
        for part, wanted in zip(x.split(1024), targets.flatten().split(1024), strict=True):
            total = total + checkpoint(self.chunk_loss, part, wanted, use_reentrant=False)
        return total / targets.numel()


def no_sync(model, is_last):
    """As with DistributedDataParallel: nothing to leave out on one card."""
    return contextlib.nullcontext() if is_last or not hasattr(model, "no_sync") else model.no_sync()


model = GPT().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True)
for _ in range(8):
    for index in range(4):
        ids = torch.randint(0, 100_352, (4, 1025)).pin_memory().cuda(non_blocking=True)
        with no_sync(model, index == 3), torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(ids[:, :-1], ids[:, 1:]) / 4
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
