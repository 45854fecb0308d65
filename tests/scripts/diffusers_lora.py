"""diffusers: LoRA on the UNet of a latent diffusion model, as its text-to-image example does; noise prediction."""

import torch
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.training_utils import cast_training_params
from parameter_count import print_parameters
from peft import LoraConfig

unet = UNet2DConditionModel(
    sample_size=16, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=32, attention_head_dim=8,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
)  # fmt: skip
vae = AutoencoderKL(
    block_out_channels=(32, 32), down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2
)
unet.requires_grad_(False)
vae.requires_grad_(False)
unet.to("cuda", dtype=torch.float16)
vae.to("cuda", dtype=torch.float16)
unet.add_adapter(
    LoraConfig(r=4, lora_alpha=4, init_lora_weights="gaussian", target_modules=["to_k", "to_q", "to_v", "to_out.0"])
)
cast_training_params(unet, dtype=torch.float32)
trained = [p for p in unet.parameters() if p.requires_grad]
print_parameters(unet, vae)
schedule, optimizer = DDPMScheduler(num_train_timesteps=1000), torch.optim.AdamW(trained, lr=1e-4)
for _ in range(8):
    latents = (
        vae.encode(torch.randn(2, 3, 32, 32).to("cuda", dtype=torch.float16)).latent_dist.sample()
        * vae.config.scaling_factor
    )
    noise = torch.randn_like(latents)
    steps = torch.randint(0, schedule.config.num_train_timesteps, (2,), device=latents.device).long()
    with torch.autocast("cuda", dtype=torch.float16):
        words = torch.randn(2, 8, 32, device="cuda", dtype=torch.float16)
        prediction = unet(schedule.add_noise(latents, noise, steps), steps, words, return_dict=False)[0]
    loss = torch.nn.functional.mse_loss(prediction.float(), noise.float())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    optimizer.zero_grad()
