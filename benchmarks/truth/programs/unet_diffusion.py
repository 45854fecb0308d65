"""Noise prediction with a U-Net of diffusers, bfloat16, exponential average of the weights."""

import torch
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.training_utils import EMAModel

model = UNet2DModel(
    sample_size=64,
    block_out_channels=(128, 128, 256, 512),
    down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
).to("cuda")
average = EMAModel(model.parameters())
scheduler = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(8):
    images = torch.randn(16, 3, 64, 64, device="cuda")
    noise, steps = torch.randn_like(images), torch.randint(0, 1000, (16,), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        predicted = model(scheduler.add_noise(images, noise, steps), steps).sample
        loss = torch.nn.functional.mse_loss(predicted.float(), noise)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    average.step(model.parameters())
