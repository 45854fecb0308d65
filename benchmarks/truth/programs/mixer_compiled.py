"""timm's mixer_b16_224, compiled, in bfloat16 with stochastic depth: 64 images of 224 pixels."""

import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy

torch.set_float32_matmul_precision("high")
model = timm.create_model("mixer_b16_224", drop_path_rate=0.1).cuda()
model = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
criterion = LabelSmoothingCrossEntropy(0.1)
for _ in range(8):
    images, labels = torch.randn(64, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (64,), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
