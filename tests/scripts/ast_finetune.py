"""Classification of sound by the Audio Spectrogram Transformer."""

import torch
from transformers import ASTConfig, ASTForAudioClassification

torch.manual_seed(0)
config = ASTConfig(
    hidden_size=192, num_hidden_layers=4, num_attention_heads=4, intermediate_size=768, max_length=512,
)  # fmt: skip
model = ASTForAudioClassification(config).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(6):
    optimizer.zero_grad()
    output = model(input_values=torch.randn(4, 512, 128).cuda(), labels=torch.randint(0, 2, (4,)).cuda())
    output.loss.backward()
    optimizer.step()
