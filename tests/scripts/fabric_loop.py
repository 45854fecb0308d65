"""Fabric: setup of model, optimizer and loader, bf16-mixed, accumulation without synchronisation."""

import torch
from lightning.fabric import Fabric
from parameter_count import print_parameters
from torch import nn

fabric = Fabric(accelerator="cuda", devices=1, precision="bf16-mixed")
fabric.launch()
layer = nn.TransformerEncoderLayer(64, 4, dim_feedforward=128, batch_first=True)
model = nn.Sequential(nn.Embedding(256, 64), nn.TransformerEncoder(layer, 2), nn.Linear(64, 256))
print_parameters(model)
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(torch.randint(0, 256, (96, 33)), batch_size=8))
for number, ids in enumerate(loader):
    accumulates = number % 2 == 0
    with fabric.no_backward_sync(model, enabled=accumulates):
        logits = model(ids[:, :-1])
        fabric.backward(nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()))
    if not accumulates:
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
fabric.save("checkpoint.pt", {"model": model, "optimizer": optimizer})
