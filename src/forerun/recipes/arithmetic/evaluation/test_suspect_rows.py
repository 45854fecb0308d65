import numpy as np
import pytest
import torch

from forerun.data.token_data import IGNORED, TokenSample
from forerun.models.build import build_model
from forerun.models.catalogue import model_config
from forerun.recipes.arithmetic.evaluation.suspect_rows import precision_at, score_rows, separation

ROWS = [
    TokenSample([5, 6, 7, 8], [IGNORED, IGNORED, 7, 8]),
    TokenSample([5, 6, 9], [IGNORED, IGNORED, 9]),
    TokenSample([11, 12, 13, 14, 15]),
]
TRUSTED = [TokenSample([5, 6, 7, 8], [IGNORED, IGNORED, 7, 8])]


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-gpt2"])
def model(request):
    torch.manual_seed(0)
    return build_model(model_config(request.param, {"tie_word_embeddings": False}, "auto"), "causal-lm")


def by_autograd(model, sample):
    """Loss of one row alone, and its gradient in the output layer."""
    model.eval()
    target = sample.ids if sample.target is None else sample.target
    labels = torch.tensor([list(target)])
    logits = model(input_ids=torch.tensor([list(sample.ids)])).logits
    loss = torch.nn.functional.cross_entropy(logits[0, :-1], labels[0, 1:], ignore_index=IGNORED, reduction="sum")
    (slope,) = torch.autograd.grad(loss, [model.lm_head.weight])
    return float(loss.detach()), slope


def test_scores_are_those_of_autograd(model):
    scores = score_rows(model, ROWS, 0, trusted=TRUSTED)
    trusted = by_autograd(model, TRUSTED[0])[1]
    for number, row in enumerate(ROWS):
        loss, slope = by_autograd(model, row)
        assert scores.loss[number] == pytest.approx(loss, rel=1e-4)
        assert scores.gradient[number] == pytest.approx(float(slope.norm()), rel=1e-4)
        assert scores.influence[number] == pytest.approx(-float((slope * trusted).sum()), rel=1e-3, abs=1e-4)


def test_batching_changes_nothing_and_the_mode_is_put_back(model, monkeypatch):
    together = score_rows(model, ROWS, 0)
    monkeypatch.setattr("forerun.recipes.arithmetic.evaluation.suspect_rows.MOST_ROWS", 1)
    model.train()
    alone = score_rows(model, ROWS, 0)
    assert model.training
    np.testing.assert_allclose(together.loss, alone.loss, rtol=1e-5)
    np.testing.assert_allclose(together.gradient, alone.gradient, rtol=1e-4)
    assert not alone.influence.any()


def test_a_row_is_reproduced_when_every_token_is_the_likeliest(model):
    model.eval()
    ids = [5, 6]
    for _ in range(3):
        ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    rows = [TokenSample(ids, [IGNORED, IGNORED, *ids[2:]]), TokenSample([*ids[:-1], (ids[-1] + 1) % 500])]
    assert score_rows(model, rows, 0).is_reproduced.tolist() == [True, False]


def test_ranking_against_the_truth():
    corrupt = [False, True, False, True]
    scores = np.asarray([0.1, 0.9, 0.8, 0.7])
    order = np.argsort(-scores)
    assert [precision_at(corrupt, order, first) for first in (1, 2, 3)] == pytest.approx([1, 0.5, 2 / 3])
    assert separation(corrupt, scores) == 0.75
    assert separation([False] * 4, scores) is None
