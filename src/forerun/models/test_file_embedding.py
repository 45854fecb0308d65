import torch

from forerun.models.file_embedding import FileEmbedding
from forerun.step.contrastive import supervised_contrastive


def test_contrast_brings_files_of_a_task_together():
    """Four tasks that differ in 4 of 40 noisy features; only these can tell them apart."""
    torch.manual_seed(0)
    tasks = torch.arange(4).repeat(16)
    features = torch.randn(64, 40)
    features[:, :4] += 3 * torch.eye(4)[tasks]
    model = FileEmbedding([30, 10], hidden=32, width=8, dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    before = supervised_contrastive(model(features), tasks).loss.item()
    for _ in range(60):
        optimizer.zero_grad()
        found = supervised_contrastive(model(features), tasks)
        found.loss.backward()
        optimizer.step()
    assert found.floor.item() <= found.loss.item() < before - 0.5
    vectors = model.eval()(features)
    assert torch.allclose(vectors.norm(dim=1), torch.ones(64), atol=1e-5)
