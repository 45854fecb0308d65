"""wav2vec 2.0's base encoder with a head over sounds of 5 seconds, float32 with TF32."""

import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

torch.backends.cuda.matmul.allow_tf32 = True
config = Wav2Vec2Config(num_labels=12, mask_time_prob=0.0, layerdrop=0.0)
model = Wav2Vec2ForSequenceClassification(config).cuda().train()
model.freeze_feature_encoder()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-5)
for _ in range(8):
    sound, labels = torch.randn(8, 80_000, device="cuda"), torch.randint(0, 12, (8,)).cuda()
    loss = model(input_values=sound, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
