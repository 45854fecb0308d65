"""A cross network and an MLP over a table of 40 columns with sparse embeddings, Adam and SparseAdam, float32."""

import torch
from torch import nn


class CrossNetwork(nn.Module):
    """Columns to one logit: crosses of the input beside a deep path."""

    def __init__(self, columns=40, rows=50_000, width=32, hidden=1024):
        super().__init__()
        whole = columns * width
        self.embedding = nn.Embedding(columns * rows, width, sparse=True)
        self.register_buffer("offsets", torch.arange(columns) * rows, persistent=False)
        self.crosses = nn.ModuleList([nn.Linear(whole, whole) for _ in range(3)])
        deep = []
        for before in (whole, hidden, hidden):
            deep += [nn.Linear(before, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.2)]
        self.deep, self.head = nn.Sequential(*deep), nn.Linear(whole + hidden, 1)

    def forward(self, ids):
        """(batch, columns) -> (batch,)."""
        start = self.embedding(ids + self.offsets).flatten(1)
        x = start
        for cross in self.crosses:
            x = start * cross(x) + x
        return self.head(torch.cat([x, self.deep(start)], 1)).squeeze(1)


model = CrossNetwork().cuda()
sparse = torch.optim.SparseAdam(model.embedding.parameters(), lr=1e-3)
dense = torch.optim.Adam([p for name, p in model.named_parameters() if not name.startswith("embedding")], lr=1e-3)
table = torch.randint(0, 50_000, (100_000, 40))
answers = torch.randint(0, 2, (100_000,)).float()
for step in range(8):
    rows = slice(step * 12_288, (step + 1) * 12_288)
    loss = nn.functional.binary_cross_entropy_with_logits(model(table[rows].cuda()), answers[rows].cuda())
    sparse.zero_grad()
    dense.zero_grad()
    loss.backward()
    dense.step()
    sparse.step()
