"""PointNet with its turning network over clouds of 4,096 points, Lightning's Trainer, float32."""

import lightning
import torch
import torch.nn.functional as F
from torch import nn


def shared(*widths):
    """A small network for every point."""
    parts = []
    for before, after in zip(widths, widths[1:], strict=False):
        parts += [nn.Conv1d(before, after, 1), nn.BatchNorm1d(after), nn.ReLU()]
    return nn.Sequential(*parts)


class Turn(nn.Module):
    """A matrix for each cloud."""

    def __init__(self, size):
        super().__init__()
        self.size, self.points = size, shared(size, 64, 128, 1024)
        self.head = nn.Sequential(
            nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 256), nn.BatchNorm1d(256), nn.ReLU(),
            nn.Linear(256, size * size),
        )  # fmt: skip

    def forward(self, x):
        """(batch, size, points) -> (batch, size, size)."""
        turned = self.head(self.points(x).max(2).values).view(-1, self.size, self.size)
        return turned + torch.eye(self.size, device=x.device)


class PointNet(lightning.LightningModule):
    """Clouds to one of 40 kinds, and the parts of each point."""

    def __init__(self):
        super().__init__()
        self.turn_points, self.turn_features = Turn(3), Turn(64)
        self.first, self.second = shared(3, 64, 64), shared(64, 128, 1024)
        self.parts = nn.Sequential(shared(1088, 512, 256, 128), nn.Conv1d(128, 50, 1))
        self.kinds = nn.Sequential(nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Dropout(0.3))
        self.kind = nn.Linear(512, 40)

    def training_step(self, batch, _):
        """The loss of kinds and parts, and a matrix held orthogonal."""
        clouds, kinds, parts = batch
        points = self.first(torch.bmm(self.turn_points(clouds), clouds))
        matrix = self.turn_features(points)
        points = torch.bmm(matrix, points)
        whole = self.second(points).max(2).values
        everywhere = torch.cat([points, whole[:, :, None].expand(-1, -1, points.shape[2])], 1)
        loss = F.cross_entropy(self.kind(self.kinds(whole)), kinds) + F.cross_entropy(self.parts(everywhere), parts)
        away = torch.eye(64, device=self.device) - torch.bmm(matrix, matrix.transpose(1, 2))
        return loss + 0.001 * away.norm(dim=(1, 2)).mean()

    def configure_optimizers(self):
        """Adam, slower by steps."""
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3, weight_decay=1e-4)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.7)]


clouds = torch.utils.data.TensorDataset(
    torch.randn(256, 3, 4096), torch.randint(0, 40, (256,)), torch.randint(0, 50, (256, 4096))
)
trainer = lightning.Trainer(
    max_steps=8, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
)  # fmt: skip
trainer.fit(PointNet(), torch.utils.data.DataLoader(clouds, batch_size=32, shuffle=True, drop_last=True))
