import math

import pytest
import torch
import torch.nn.functional as F

from forerun.step.contrastive import supervised_contrastive


def units(size: int, width: int = 16, seed: int = 0) -> torch.Tensor:
    return F.normalize(torch.randn(size, width, generator=torch.Generator().manual_seed(seed)), dim=1)


def by_the_formula(z: torch.Tensor, keys: list[int], t: float) -> float:
    total, anchors = 0.0, 0
    for i in range(len(keys)):
        positives = [p for p in range(len(keys)) if p != i and keys[p] == keys[i]]
        if not positives:
            continue
        below = sum(math.exp(float(z[i] @ z[a]) / t) for a in range(len(keys)) if a != i)
        total -= sum(math.log(math.exp(float(z[i] @ z[p]) / t) / below) for p in positives) / len(positives)
        anchors += 1
    return total / anchors


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_equals_the_published_formula(temperature):
    keys = [0, 0, 1, 1, 1, 2, 0, 3]
    result = supervised_contrastive(units(8), torch.tensor(keys), temperature)
    assert float(result.loss) == pytest.approx(by_the_formula(units(8), keys, temperature), rel=1e-4)


def test_equal_vectors_give_log_of_the_others():
    same = units(1).expand(10, -1)
    result = supervised_contrastive(same, torch.arange(10) // 5)
    assert float(result.loss) == pytest.approx(math.log(9), rel=1e-5)


def test_perfect_clusters_reach_the_floor_and_random_ones_do_not():
    keys = torch.tensor([0, 0, 0, 1, 1, 2])
    perfect = supervised_contrastive(torch.eye(3)[keys], keys)
    expected = (3 * math.log(2) + 2 * math.log(1)) / 5  # the sample alone in its class is no anchor
    assert float(perfect.floor) == pytest.approx(expected)
    assert float(perfect.loss) == pytest.approx(expected, abs=1e-5)
    assert float(supervised_contrastive(units(6), keys).loss) > expected + 0.1


def test_without_positives_loss_and_gradient_are_zero():
    vectors = units(4).requires_grad_()
    result = supervised_contrastive(vectors, torch.arange(4))
    result.loss.backward()
    assert (float(result.loss.detach()), float(result.floor)) == (0.0, 0.0)
    assert vectors.grad is not None
    assert float(vectors.grad.abs().max()) == 0.0


def test_gradient_is_that_of_finite_differences():
    vectors = torch.randn(5, 3, dtype=torch.float32, generator=torch.Generator().manual_seed(1)).requires_grad_()
    keys = torch.tensor([0, 1, 0, 1, 2])
    supervised_contrastive(vectors, keys, 1.0).loss.backward()
    assert vectors.grad is not None
    for row, column in ((0, 0), (3, 2), (4, 1)):
        shift = torch.zeros_like(vectors)
        shift[row, column] = 1e-2
        with torch.no_grad():
            above = supervised_contrastive(vectors + shift, keys, 1.0).loss
            below = supervised_contrastive(vectors - shift, keys, 1.0).loss
        assert float(vectors.grad[row, column]) == pytest.approx(float(above - below) / 2e-2, abs=1e-3)


def test_is_exact_under_autocast():
    keys = torch.arange(8) // 2
    plain = supervised_contrastive(units(8), keys).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = supervised_contrastive(units(8), keys).loss
    assert torch.equal(plain, mixed)
