"""Lightning's Trainer: a vision transformer of one's own, bf16-mixed."""

import lightning
import torch
from torch import nn


class Pictures(lightning.LightningModule):
    """Patches, an encoder of PyTorch, a head."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 512, 16, 16)
        layer = nn.TransformerEncoderLayer(512, 8, 2048, activation="gelu", batch_first=True, norm_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False), nn.Linear(512, 10)

    def training_step(self, batch):
        """Loss of one batch."""
        images, labels = batch
        x = self.encoder(self.patches(images).flatten(2).transpose(1, 2)).mean(1)
        return nn.functional.cross_entropy(self.head(x), labels)

    def configure_optimizers(self):
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


rows = torch.utils.data.TensorDataset(torch.randn(256, 3, 224, 224), torch.randint(0, 10, (256,)))
trainer = lightning.Trainer(
    accelerator="gpu", devices=1, precision="bf16-mixed", max_epochs=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0,
)  # fmt: skip
trainer.fit(Pictures(), torch.utils.data.DataLoader(rows, batch_size=32))
