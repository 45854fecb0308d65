"""A masked autoencoder of transformers: ViT at base size, three quarters of the patches hidden, accelerate's bf16."""

import torch
from accelerate import Accelerator
from transformers import ViTMAEConfig, ViTMAEForPreTraining


class Pictures(torch.utils.data.Dataset):
    """Random pictures, 64 different ones."""

    def __init__(self):
        self.pictures = torch.randn(64, 3, 224, 224)

    def __len__(self):
        return 8 * 128

    def __getitem__(self, index):
        return self.pictures[index % 64]


accelerator = Accelerator(mixed_precision="bf16")
model = ViTMAEForPreTraining(ViTMAEConfig(norm_pix_loss=True))
optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-4, betas=(0.9, 0.95), weight_decay=0.05)
loader = torch.utils.data.DataLoader(Pictures(), batch_size=128, shuffle=True, num_workers=4, pin_memory=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
model.train()
for images in loader:
    loss = model(pixel_values=images).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
