"""Flow matching with a small Flux of diffusers, bfloat16 throughout."""

import torch
from diffusers import FluxTransformer2DModel

model = FluxTransformer2DModel(
    in_channels=64, num_layers=6, num_single_layers=12, attention_head_dim=128, num_attention_heads=10,
    joint_attention_dim=1024, pooled_projection_dim=768, guidance_embeds=False,
)  # fmt: skip
model = model.to("cuda", torch.bfloat16).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.99))
picture_ids = torch.stack(torch.meshgrid(torch.zeros(1), torch.arange(32.0), torch.arange(32.0), indexing="ij"), -1)
picture_ids, text_ids = picture_ids.reshape(-1, 3).cuda(), torch.zeros(256, 3).cuda()
for _ in range(8):
    latents = torch.randn(4, 1024, 64, device="cuda", dtype=torch.bfloat16)
    text = torch.randn(4, 256, 1024, device="cuda", dtype=torch.bfloat16)
    pooled = torch.randn(4, 768, device="cuda", dtype=torch.bfloat16)
    noise, time = torch.randn_like(latents), torch.sigmoid(torch.randn(4, device="cuda"))
    share = time.view(-1, 1, 1).to(latents.dtype)
    predicted = model(
        hidden_states=(1 - share) * latents + share * noise, encoder_hidden_states=text, pooled_projections=pooled,
        timestep=time.to(latents.dtype), img_ids=picture_ids, txt_ids=text_ids, return_dict=False,
    )[0]  # fmt: skip
    loss = ((predicted.float() - (noise - latents).float()) ** 2).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
