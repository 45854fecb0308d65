import math

import pytest
import torch
import torch.nn.functional as F

from forerun.step.label_losses import LabelLoss, balanced_weights, symmetric_divergence

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 3.0, -2.0]])
CLASSES = torch.tensor([0, 2])
CELLS = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])


def loss(name="cross-entropy", several=False, **more):
    criterion = LabelLoss(name, several, **more)
    labels = CELLS if several else CLASSES
    return criterion(LOGITS, criterion.targets(labels, 3))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_pytorchs(smoothing):
    expected = F.cross_entropy(LOGITS, CLASSES, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(loss(smoothing=smoothing), expected)
    cells = CELLS * (1 - smoothing) + smoothing / 2
    expected = F.binary_cross_entropy_with_logits(LOGITS, cells, reduction="none").mean(dim=1)
    torch.testing.assert_close(loss(several=True, smoothing=smoothing), expected)


def test_focal_is_its_formula():
    chance = LOGITS.softmax(dim=1)[torch.arange(2), CLASSES]
    torch.testing.assert_close(loss("focal", gamma=1.5), -((1 - chance) ** 1.5) * chance.log())
    yes = LOGITS.sigmoid()
    cells = -(CELLS * (1 - yes) ** 1.5 * yes.log() + (1 - CELLS) * yes**1.5 * (1 - yes).log())
    torch.testing.assert_close(loss("focal", several=True, gamma=1.5), cells.mean(dim=1))


@pytest.mark.parametrize("several", [False, True])
def test_focal_without_focus_is_cross_entropy(several):
    torch.testing.assert_close(loss("focal", several, gamma=0.0), loss(several=several))


def test_asymmetric_is_its_formula():
    yes = LOGITS.sigmoid()
    shifted = (yes - 0.05).clamp(min=0)
    cells = -(CELLS * yes.log() + (1 - CELLS) * shifted**2 * (1 - shifted).log())
    torch.testing.assert_close(loss("asymmetric", several=True, gamma=2.0, margin=0.05), cells.mean(dim=1))


def test_class_balanced_weights_rare_labels_up():
    weights = balanced_weights([900, 90, 10], 0.999)
    assert weights[0] < weights[1] < weights[2]
    assert weights[2] / weights[0] == pytest.approx((1 - 0.999**900) / (1 - 0.999**10))
    assert sum(w * n for w, n in zip(weights, [900, 90, 10], strict=True)) / 1000 == pytest.approx(1)
    torch.testing.assert_close(
        loss("class-balanced", weights=weights), loss() * torch.tensor(weights)[CLASSES]
    )  # fmt: skip


@pytest.mark.parametrize("name", ["cross-entropy", "focal", "class-balanced"])
def test_mixed_targets_lie_between(name):
    criterion = LabelLoss(name, weights=(1.0, 1.0, 1.0))
    one, other = (criterion(LOGITS[:1], F.one_hot(torch.tensor([k]), 3).float()) for k in (0, 1))
    mixed = criterion(LOGITS[:1], torch.tensor([[0.3, 0.7, 0.0]]))
    torch.testing.assert_close(mixed, 0.3 * one + 0.7 * other)


@pytest.mark.parametrize("several", [False, True])
def test_divergence_is_symmetric_zero_for_equals_and_the_mean_of_both(several):
    one, other = LOGITS, LOGITS.flip(0)
    assert symmetric_divergence(one, one, is_multi_label=several).tolist() == [0, 0]
    divergence = symmetric_divergence(one, other, is_multi_label=several)
    torch.testing.assert_close(divergence, symmetric_divergence(other, one, is_multi_label=several))
    if not several:
        p, q = one.log_softmax(1), other.log_softmax(1)
        both = F.kl_div(p, q, log_target=True, reduction="none") + F.kl_div(q, p, log_target=True, reduction="none")
        torch.testing.assert_close(divergence, both.sum(dim=1) / 2)
    assert math.isfinite(float(divergence.sum()))
