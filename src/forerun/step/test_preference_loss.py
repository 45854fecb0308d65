"""Losses of preferred answers, by hand and where they must agree with each other."""

import math

import pytest
import torch

from forerun.settings.preference import PreferenceSettings
from forerun.step.preference_loss import preference_loss

GAINS = torch.tensor([3.0, -1.0, 0.0]), torch.tensor([-2.0, 4.0, 0.0])
TOKENS = torch.tensor([4, 2, 1]), torch.tensor([8, 5, 1])


def loss(gains=GAINS, **words):
    return preference_loss(gains, PreferenceSettings(**words), TOKENS)


def logistic(value):
    return 1 / (1 + math.exp(-value))


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ({}, -math.log(logistic(0.5))),
        ({"beta": 0.4, "label_smoothing": 0.25}, -0.75 * math.log(logistic(2)) - 0.25 * math.log(logistic(-2))),
        ({"loss": "robust", "label_smoothing": 0.25},
         (-0.75 * math.log(logistic(0.5)) + 0.25 * math.log(logistic(-0.5))) / 0.5),
        ({"loss": "hinge"}, 0.5),
        ({"loss": "ipo", "beta": 0.5}, (3 / 4 + 2 / 8 - 1) ** 2),
        ({"loss": "apo_zero"}, 1 - logistic(0.3) + logistic(-0.2)),
        ({"loss": "apo_down"}, logistic(0.3) + 1 - logistic(0.5)),
    ],
)  # fmt: skip
def test_the_first_pair_by_hand(words, first):
    assert float(loss(**words)[0]) == pytest.approx(first, rel=1e-5, abs=1e-7)


def test_robust_expects_the_loss_of_the_right_order():
    """Chowdhury et al., lemma 3.1: over pairs that were exchanged with the stated share its mean is the plain loss."""
    share = 0.2
    right, exchanged = (loss(gains, loss="robust", label_smoothing=share) for gains in (GAINS, GAINS[::-1]))
    assert torch.allclose((1 - share) * right + share * exchanged, loss())


def test_every_loss_raises_the_chosen_answer_where_nothing_was_learned():
    for words in (
        {},
        {"loss": "hinge"},
        {"loss": "ipo"},
        {"loss": "apo_zero"},
        {"loss": "robust", "label_smoothing": 0.1},
    ):
        chosen, rejected = torch.zeros(3, requires_grad=True), torch.zeros(3, requires_grad=True)
        loss((chosen, rejected), **words).sum().backward()
        assert (chosen.grad < 0).all()
        assert (rejected.grad > 0).all()
