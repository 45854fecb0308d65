"""Whisper of the base size learns 30 seconds of sound in bfloat16."""

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

config = WhisperConfig(
    d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
    encoder_ffn_dim=2048, decoder_ffn_dim=2048,
)  # fmt: skip
model = WhisperForConditionalGeneration(config).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for _ in range(8):
    sound, text = torch.randn(16, 80, 3000, device="cuda"), torch.randint(0, 50000, (16, 128)).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_features=sound, labels=text).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
