import torch

from forerun.recipes.code_detector.embedding.model import FileEmbedding, rarity_of
from forerun.step.contrastive import supervised_contrastive


def test_contrast_brings_files_of_a_task_together():
    """Four tasks that differ in 4 of 40 noisy features; only these can tell them apart."""
    torch.manual_seed(0)
    tasks = torch.arange(4).repeat(16)
    features = torch.randn(64, 40)
    features[:, :4] += 3 * torch.eye(4)[tasks]
    model = FileEmbedding([30, 10], width=16, dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    before = supervised_contrastive(model(features), tasks).loss.item()
    for _ in range(60):
        optimizer.zero_grad()
        contrast = supervised_contrastive(model(features), tasks)
        contrast.loss.backward()
        optimizer.step()
    assert contrast.floor.item() <= contrast.loss.item() < before - 0.5
    vectors = model.eval()(features)
    assert torch.allclose(vectors.norm(dim=1), torch.ones(64), atol=1e-5)


def test_untrained_it_is_the_cosine_of_the_weighted_features():
    torch.manual_seed(0)
    features, rarity = torch.randn(20, 300), torch.rand(300)
    vectors = FileEmbedding([300], rarity, width=4096).eval()(features)
    weighted = torch.nn.functional.normalize(features * rarity, dim=1)
    gap = (vectors @ vectors.T - weighted @ weighted.T).abs().max()
    assert gap < 5 / 4096**0.5  # five standard deviations of a random projection


def test_what_every_file_has_weighs_nothing():
    features = torch.tensor([[1.0, 1.0], [2.0, 0.0], [3.0, 0.0], [1.0, 0.0]])
    common, rare = rarity_of(features).tolist()
    assert common == 0 < rare
    assert rare == torch.log(torch.tensor(2.0)).item()
