"""Two layers of LSTM over words, float32."""

import torch
from torch import nn


class Words(nn.Module):
    """Embedding, LSTM, logits."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(33278, 650)
        self.lstm = nn.LSTM(650, 650, num_layers=2, dropout=0.5, batch_first=True)
        self.head = nn.Linear(650, 33278)

    def forward(self, ids):
        """(batch, length) -> (batch, length, words)."""
        return self.head(self.lstm(self.words(ids))[0])


model = Words().cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(8):
    ids = torch.randint(0, 33278, (64, 71)).cuda()
    loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
