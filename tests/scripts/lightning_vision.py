"""Lightning: a module with training and validation steps, 16-mixed, metrics, a learning-rate schedule."""

import lightning as L
import timm
import torch
from parameter_count import print_parameters
from torch import nn
from torchmetrics.classification import MulticlassAccuracy


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = timm.create_model("resnet10t", num_classes=4)
        self.accuracy = MulticlassAccuracy(num_classes=4)

    def training_step(self, batch, index):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        images, labels = batch
        self.accuracy(self.model(images), labels)
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


rows = [(torch.randn(3, 64, 64), number % 4) for number in range(64)]
loader = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True)
model = Classifier()
print_parameters(model)
trainer = L.Trainer(
    accelerator="gpu", devices=1, precision="16-mixed", max_epochs=2, logger=False, gradient_clip_val=1.0
)
trainer.fit(model, loader, torch.utils.data.DataLoader(rows[:8], batch_size=4))
