"""Contrastive fine-tuning of CLIP in a plain loop with a frozen vision tower and a loss scaler."""

import torch
from parameter_count import print_parameters
from transformers import CLIPConfig, CLIPModel

tower = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
text = {**tower, "vocab_size": 256, "max_position_embeddings": 32, "eos_token_id": 2, "bos_token_id": 1}
model = CLIPModel(
    CLIPConfig(text_config=text, vision_config={**tower, "image_size": 64, "patch_size": 16}, projection_dim=32)
)
for parameter in model.vision_model.parameters():
    parameter.requires_grad = False
model.to("cuda")
print_parameters(model)
optimizer = torch.optim.AdamW(filter(lambda p: p.requires_grad, model.parameters()), lr=5e-5)
scaler = torch.cuda.amp.GradScaler()
for step in range(6):
    ids = torch.randint(5, 250, (8, 16))
    ids[:, -1] = 2
    pixels = torch.randn(8, 3, 64, 64)
    with torch.cuda.amp.autocast():
        output = model(
            input_ids=ids.cuda(),
            attention_mask=torch.ones_like(ids).cuda(),
            pixel_values=pixels.cuda(),
            return_loss=True,
        )
    optimizer.zero_grad()
    scaler.scale(output.loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        model.logit_scale.clamp_(0, 4.6)
    print(
        step, output.loss.item(), (output.logits_per_image.argmax(-1) == torch.arange(8).cuda()).float().mean().item()
    )
