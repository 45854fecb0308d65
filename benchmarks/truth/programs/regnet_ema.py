"""timm's regnety_032 with mixup, LAMB and an average of the weights, bfloat16, channels last: 96 images of 224."""

import timm
import torch
from timm.data import Mixup
from timm.loss import BinaryCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3

model = timm.create_model("regnety_032", num_classes=1000, drop_path_rate=0.1)
model = model.cuda().to(memory_format=torch.channels_last)
average = ModelEmaV3(model, decay=0.9998)
optimizer = create_optimizer_v2(model, opt="lamb", lr=5e-3, weight_decay=0.02)
mixup, criterion = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, num_classes=1000), BinaryCrossEntropy()
batch = torch.randn(96, 3, 224, 224), torch.randint(0, 1000, (96,))
for step in range(8):
    images, labels = [part.cuda() for part in batch]
    images, labels = mixup(images, labels)
    images = images.contiguous(memory_format=torch.channels_last)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update(model, step=step)
