"""A wider decoder in bfloat16 throughout, each block recomputed, SGD with momentum."""

import torch
import torch.nn.functional as F
from gpt_fp16_scaler import GPT
from torch.utils.checkpoint import checkpoint


class Checkpointed(GPT):
    """Recomputes each block."""

    def forward(self, ids):
        """(batch, length) -> (batch, length, vocabulary)."""
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x))


with torch.device("cuda"):
    model = Checkpointed(width=1600, layers=24, heads=25).to(torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
for _ in range(8):
    ids = torch.randint(0, 50304, (16, 1025), device="cuda")
    loss = F.cross_entropy(model(ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
