"""DLRM: 26 tables of embedding bags, dot products of all pairs, clicks; Adagrad, float32 with TF32."""

import torch
from torch import nn


def mlp(*widths):
    """Linear and ReLU, in turn."""
    parts = []
    for before, after in zip(widths, widths[1:], strict=False):
        parts += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*parts)


class DLRM(nn.Module):
    """13 numbers and 26 bags of ids to one logit."""

    def __init__(self, rows, width=64):
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(count, width, mode="sum") for count in rows])
        self.bottom = mlp(13, 512, 256, width)
        self.top = nn.Sequential(mlp(width + 27 * 26 // 2, 1024, 1024, 512, 256), nn.Linear(256, 1))
        self.register_buffer("pairs", torch.tril_indices(27, 27, offset=-1), persistent=False)

    def forward(self, numbers, ids, offsets):
        """(batch, 13), 26 of (batch x 4,), (batch,) -> (batch,)."""
        dense = self.bottom(numbers)
        features = [dense, *[table(each, offsets) for table, each in zip(self.tables, ids, strict=True)]]
        stacked = torch.stack(features, 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([dense, products], 1)).squeeze(1)


torch.backends.cuda.matmul.allow_tf32 = True
rows = [1_000_000] * 6 + [100_000] * 8 + [1_000] * 12
model = DLRM(rows).cuda()
optimizer, criterion = torch.optim.Adagrad(model.parameters(), lr=0.01), nn.BCEWithLogitsLoss()
for _ in range(8):
    numbers, clicks = torch.rand(16384, 13).cuda(), torch.randint(0, 2, (16384,)).float().cuda()
    ids = [torch.randint(0, count, (16384 * 4,)).cuda() for count in rows]
    loss = criterion(model(numbers, ids, torch.arange(0, 16384 * 4, 4).cuda()), clicks)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
