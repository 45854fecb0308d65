"""Speech to letters: two convolutions, five layers of LSTM both ways, CTC, sounds of varying length, float32."""

import torch
from torch import nn


class Speech(nn.Module):
    """Spectrograms to logarithms of probabilities of 29 signs."""

    def __init__(self, bins=80, hidden=768, signs=29):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 32, (11, 5), stride=(2, 2), padding=(5, 2), bias=False), nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20, inplace=True), nn.Conv2d(32, 32, (11, 5), stride=(1, 2), padding=(5, 2), bias=False),
            nn.BatchNorm2d(32), nn.Hardtanh(0, 20, inplace=True),
        )  # fmt: skip
        self.rnn = nn.LSTM(32 * bins // 4, hidden, 5, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Sequential(nn.LayerNorm(2 * hidden), nn.Linear(2 * hidden, signs))

    def forward(self, sounds, lengths):
        """(batch, frames, bins) -> (frames / 2, batch, signs)."""
        x = self.conv(sounds[:, None]).transpose(1, 2).flatten(2)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths // 2, batch_first=True, enforce_sorted=False)
        x, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.head(x).log_softmax(-1).transpose(0, 1)


model = Speech().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
criterion = nn.CTCLoss(blank=0, zero_infinity=True)
for _ in range(8):
    lengths = 1000 - torch.arange(32) * 12
    sounds = torch.randn(32, int(lengths.max()), 80).cuda()
    letters, counts = torch.randint(1, 29, (32, 120)), torch.full((32,), 120)
    out = model(sounds, lengths)
    loss = criterion(out, letters.cuda(), lengths // 2, counts)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 400)
    optimizer.step()
