"""timm: its optimizer and scheduler factories, mixup, exponential average of weights, native loss scaling."""

import timm
import torch
from parameter_count import print_parameters
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3, NativeScaler

model = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=10, drop_path_rate=0.1).cuda()
average = ModelEmaV3(model, decay=0.99)
print_parameters(model, average)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
schedule = CosineLRScheduler(optimizer, t_initial=10)
mixup, loss_of, scaler = (
    Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=10),
    SoftTargetCrossEntropy(),
    NativeScaler(),
)
for step in range(8):
    images, labels = mixup(torch.randn(8, 3, 64, 64).cuda(), torch.randint(0, 10, (8,)).cuda())
    with torch.autocast("cuda", dtype=torch.float16):
        loss = loss_of(model(images), labels)
    optimizer.zero_grad()
    scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
    average.update(model)
    schedule.step(step)
    print(f"{loss.item():.3f}")
