"""Tables of counts: whole where the training tokens are few, of every n-th sample where they are many, and said so."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from forerun.data.token_data import IGNORED, TokenSample
from forerun.evaluate.language import bigram_loss, unigram_loss
from forerun.own import token_scores
from forerun.own.token_scores import TokenScores, _sums, count_baselines, predicted_pairs


def samples_of(count, seed=0):
    chance = np.random.default_rng(seed)
    return [TokenSample((chance.zipf(1.4, 24) % 40).astype(np.int32)) for _ in range(count)]


def test_pairs_are_of_the_labels_that_count():
    sample = TokenSample([5, 6, 7, 8], [IGNORED, 6, IGNORED, 9])
    assert predicted_pairs(sample).tolist() == [[5, 6], [7, 9]]
    assert predicted_pairs(TokenSample([5, 6, 7])).tolist() == [[5, 6], [6, 7]]


@pytest.mark.parametrize("block", [1, 100, 2**20])
def test_losses_are_those_of_all_pairs_at_once(block, monkeypatch):
    monkeypatch.setattr(token_scores, "BLOCK_TARGETS", block)
    train, test = samples_of(50), samples_of(20, seed=1)
    scores, nats, note = count_baselines(train, test)
    pairs = [np.concatenate([predicted_pairs(sample) for sample in part]) for part in (train, test)]
    size = int(max(part.max() for part in pairs)) + 1
    assert scores["unigram"]["loss"] == pytest.approx(unigram_loss(*pairs, size), rel=1e-12)
    assert scores["bigram"]["loss"] == pytest.approx(bigram_loss(*pairs, size), rel=1e-12)
    assert note == ""
    for name, own in nats.items():
        assert own.shape == (20,)
        assert own[7] / 23 == pytest.approx(count_baselines(train, test[7:8])[0][name]["loss"])


def test_a_loss_is_compared_sample_by_sample():
    chance = np.random.default_rng(0)
    nats = chance.gamma(1.0, 40.0, size=60)  # samples differ much, and the other model is a little worse in each
    scores = TokenScores(nats, np.full(60, 20.0), np.zeros(60))
    low, high = scores.interval()
    gap_low, gap_high = scores.interval(nats * 1.05)
    assert low < scores.loss < high
    assert gap_low < -0.05 * scores.loss < gap_high < 0
    assert high - low > 10 * (gap_high - gap_low)


def test_of_many_training_samples_a_part_is_counted_and_named(monkeypatch):
    train, test = samples_of(50), samples_of(20, seed=1)
    monkeypatch.setattr(token_scores, "COUNTED_TOKENS", 500)
    scores, _, note = count_baselines(train, test)
    assert "391 training targets, those of one sample in 3" in note
    assert scores == count_baselines(train[::3], test)[0]


def test_sums_are_those_of_the_whole_table_of_logits():
    logits, labels = torch.randn(3, 5, 11), torch.randint(0, 11, (3, 5))
    labels[0, :2] = labels[2] = IGNORED
    losses = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    hits = (logits.argmax(-1) == labels).sum(1)
    expected = torch.stack([losses.double().sum(1), (labels != IGNORED).sum(1).double(), hits.double()], dim=1)
    assert torch.allclose(_sums(logits, labels), expected, atol=1e-5)
