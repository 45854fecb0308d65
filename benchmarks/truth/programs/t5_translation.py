"""An encoder and decoder of T5's base size in bfloat16, Adafactor."""

import torch
from transformers import T5Config, T5ForConditionalGeneration
from transformers.optimization import Adafactor

config = T5Config(d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0)
model = T5ForConditionalGeneration(config).cuda().train()
optimizer = Adafactor(model.parameters(), scale_parameter=True, relative_step=True, warmup_init=True, lr=None)
for _ in range(8):
    source, target = torch.randint(2, 32000, (16, 256)).cuda(), torch.randint(2, 32000, (16, 128)).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_ids=source, attention_mask=torch.ones_like(source), labels=target).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
