"""A variational autoencoder over pictures of 256 pixels, transposed convolutions, float32."""

import torch
import torch.nn.functional as F
from torch import nn


class VAE(nn.Module):
    """Six halvings, 256 numbers between, six doublings."""

    def __init__(self, widths=(3, 32, 64, 128, 256, 512, 512), latent=256):
        super().__init__()
        down, up = [], []
        for before, after in zip(widths, widths[1:], strict=False):
            down += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.LeakyReLU()]
        for before, after in zip(widths[::-1], widths[-2:0:-1], strict=False):
            up += [nn.ConvTranspose2d(before, after, 3, 2, 1, output_padding=1), nn.BatchNorm2d(after), nn.LeakyReLU()]
        up += [nn.ConvTranspose2d(widths[1], widths[1], 3, 2, 1, output_padding=1), nn.BatchNorm2d(widths[1])]
        self.encoder, self.decoder = nn.Sequential(*down), nn.Sequential(*up, nn.LeakyReLU(), nn.Conv2d(32, 3, 3, 1, 1))
        self.mean, self.log_variance = nn.Linear(512 * 16, latent), nn.Linear(512 * 16, latent)
        self.enter = nn.Linear(latent, 512 * 16)

    def forward(self, x):
        """Pictures to pictures, means and logarithms of variances."""
        hidden = self.encoder(x).flatten(1)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return torch.tanh(self.decoder(self.enter(z).view(-1, 512, 4, 4))), mean, log_variance


model = VAE().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for _ in range(8):
    images = torch.rand(96, 3, 256, 256, device="cuda") * 2 - 1
    again, mean, log_variance = model(images)
    divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
    loss = F.mse_loss(again, images) + 0.00025 * divergence
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
