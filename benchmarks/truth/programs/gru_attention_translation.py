"""Translation by GRUs with additive attention, word after word with teacher forcing, float32."""

import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    """Words to states of both directions."""

    def __init__(self, words, width, hidden):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(words, width), nn.Dropout(0.1)
        self.rnn, self.join = nn.GRU(width, hidden, batch_first=True, bidirectional=True), nn.Linear(2 * hidden, hidden)

    def forward(self, ids):
        """(batch, length) -> states (batch, length, 2 hidden), first state of the decoder (batch, hidden)."""
        states, last = self.rnn(self.dropout(self.embedding(ids)))
        return states, torch.tanh(self.join(torch.cat([last[0], last[1]], 1)))


class Decoder(nn.Module):
    """One word at a time, looking at the encoder's states."""

    def __init__(self, words, width, hidden):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(words, width), nn.Dropout(0.1)
        self.of_state, self.of_source = nn.Linear(hidden, hidden), nn.Linear(2 * hidden, hidden)
        self.energy, self.cell = nn.Linear(hidden, 1, bias=False), nn.GRUCell(width + 2 * hidden, hidden)
        self.head = nn.Linear(3 * hidden + width, words)

    def forward(self, ids, source, state):
        """(batch, length) -> (batch, length, words)."""
        keys, outputs = self.of_source(source), []
        for word in self.dropout(self.embedding(ids)).unbind(1):
            scores = self.energy(torch.tanh(keys + self.of_state(state)[:, None])).squeeze(2)
            context = (F.softmax(scores, 1)[:, None] @ source).squeeze(1)
            state = self.cell(torch.cat([word, context], 1), state)
            outputs.append(self.head(torch.cat([state, context, word], 1)))
        return torch.stack(outputs, 1)


encoder, decoder = Encoder(20000, 256, 512).cuda(), Decoder(20000, 256, 512).cuda()
parameters = [*encoder.parameters(), *decoder.parameters()]
optimizer, criterion = torch.optim.Adam(parameters, lr=1e-3), nn.CrossEntropyLoss(ignore_index=0)
for _ in range(8):
    source, target = torch.randint(1, 20000, (128, 50)).cuda(), torch.randint(1, 20000, (128, 49)).cuda()
    optimizer.zero_grad()
    logits = decoder(target[:, :-1], *encoder(source))
    loss = criterion(logits.reshape(-1, 20000), target[:, 1:].reshape(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 1)
    optimizer.step()
    print(f"loss {loss.item():.3f}")
