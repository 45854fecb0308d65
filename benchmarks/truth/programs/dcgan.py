"""Two networks against each other, an Adam each, float32."""

import torch
from torch import nn


def layers(widths, convolution, last):
    """Convolutions of stride two with batch norm between."""
    parts = []
    for index, (before, after) in enumerate(zip(widths, widths[1:], strict=False)):
        stride, padding = (1, 0) if index == (0 if convolution is nn.ConvTranspose2d else len(widths) - 2) else (2, 1)
        parts.append(convolution(before, after, 4, stride, padding, bias=False))
        if index < len(widths) - 2:
            parts += [nn.BatchNorm2d(after), nn.LeakyReLU(0.2, inplace=True)]
    return nn.Sequential(*parts, last)


generator = layers([100, 512, 256, 128, 64, 3], nn.ConvTranspose2d, nn.Tanh()).cuda()
critic = layers([3, 64, 128, 256, 512, 1], nn.Conv2d, nn.Sigmoid()).cuda()
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
of_critic = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion, one, zero = nn.BCELoss(), torch.ones(128).cuda(), torch.zeros(128).cuda()
for _ in range(8):
    real, fake = torch.randn(128, 3, 64, 64, device="cuda"), generator(torch.randn(128, 100, 1, 1, device="cuda"))
    of_critic.zero_grad()
    loss = criterion(critic(real).flatten(), one) + criterion(critic(fake.detach()).flatten(), zero)
    loss.backward()
    of_critic.step()
    of_generator.zero_grad()
    criterion(critic(fake).flatten(), one).backward()
    of_generator.step()
