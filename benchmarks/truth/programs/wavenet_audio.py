"""WaveNet with weight norm over a second of sound, dilated convolutions of one dimension, float32."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm


class Layer(nn.Module):
    """A gated, dilated, causal convolution with a way past it and a way out."""

    def __init__(self, width, dilation):
        super().__init__()
        self.pad = nn.ConstantPad1d((dilation, 0), 0.0)
        self.gated = weight_norm(nn.Conv1d(width, 2 * width, 2, dilation=dilation))
        self.past, self.out = weight_norm(nn.Conv1d(width, width, 1)), weight_norm(nn.Conv1d(width, 2 * width, 1))

    def forward(self, x):
        """The same shape, and the way out."""
        value, gate = self.gated(self.pad(x)).chunk(2, 1)
        hidden = torch.tanh(value) * torch.sigmoid(gate)
        return x + self.past(hidden), self.out(hidden)


class WaveNet(nn.Module):
    """Sound of 256 levels to the next level."""

    def __init__(self, width=64, blocks=3, depth=9):
        super().__init__()
        self.enter = nn.Embedding(256, width)
        self.layers = nn.ModuleList([Layer(width, 2**n) for _ in range(blocks) for n in range(depth)])
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(2 * width, 256, 1), nn.ReLU(), nn.Conv1d(256, 256, 1))

    def forward(self, levels):
        """(batch, length) -> (batch, 256, length)."""
        x, total = self.enter(levels).transpose(1, 2), 0
        for layer in self.layers:
            x, out = layer(x)
            total = total + out
        return self.head(total)


model = WaveNet().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(8):
    sound = torch.randint(0, 256, (6, 16001)).cuda()
    loss = nn.functional.cross_entropy(model(sound[:, :-1]), sound[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
