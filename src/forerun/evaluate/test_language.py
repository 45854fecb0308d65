import math

import numpy as np
import pytest
import torch
from torch import nn

from forerun.data.language_windows import as_batch, held_out_batches
from forerun.evaluate.language import bigram_loss, score_language, unigram_loss


class Table(nn.Module):
    """Logits of the next token by the present one."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, ids):
        return type("Output", (), {"logits": self.logits[ids]})()


def test_a_uniform_model_scores_the_log_of_the_vocabulary():
    stream = np.arange(20, dtype=np.int32) % 5
    score = score_language(Table(torch.zeros(5, 5)), held_out_batches(stream, 8, 2))
    assert score.targets == 19  # padding of the last window does not count
    assert score.loss == pytest.approx(math.log(5))
    metrics = score.metrics(words=4, bytes=38)
    assert metrics["token_perplexity"] == pytest.approx(5)
    assert metrics["word_perplexity"] == pytest.approx(5 ** (19 / 4))
    assert metrics["bits_per_byte"] == pytest.approx(math.log2(5) * 19 / 38)


def test_a_model_that_knows_is_right_everywhere_and_keeps_its_mode():
    stream = np.arange(21, dtype=np.int32) % 5
    model = Table(torch.roll(torch.eye(5), 1, dims=1) * 100).train()
    score = score_language(model, held_out_batches(stream, 4, 3))
    assert score.is_right.all()
    assert score.loss < 1e-6
    assert model.training


def test_the_unigram_table_by_hand():
    train, held_out = np.array([9, 0, 0, 1], dtype=np.int32), np.array([9, 0, 1], dtype=np.int32)
    shares = np.array([3, 2, *[1] * 8]) / 13  # targets 0, 0, 1 and one added for each of ten
    assert unigram_loss(train, held_out, 10) == pytest.approx(-(math.log(shares[0]) + math.log(shares[1])) / 2)


def test_the_bigram_table_by_hand():
    """After 0: 1 twice, 2 once; 0 follows 1 twice. Continuations: 0, 1 and 2 follow one kind each."""
    train, held_out = np.array([0, 1, 0, 1, 0, 2], dtype=np.int32), np.array([0, 1], dtype=np.int32)
    below = 2 / 6
    probability = (2 - 0.75) / 3 + 0.75 * 2 / 3 * below
    assert bigram_loss(train, held_out, 3) == pytest.approx(-math.log(probability))
    unseen = np.array([2, 0], dtype=np.int32)
    assert bigram_loss(train, unseen, 3) == pytest.approx(-math.log(below))


def test_bigram_probabilities_sum_to_one():
    train = np.random.default_rng(0).integers(0, 6, 200).astype(np.int32)
    for first in range(6):
        total = sum(math.exp(-bigram_loss(train, np.array([first, second], dtype=np.int32), 6)) for second in range(6))
        assert total == pytest.approx(1)


def test_tables_find_what_there_is_to_find():
    """A chain in which the present symbol fixes the next one: nothing is left for a table of pairs."""
    rows = (np.arange(9)[None, :] + np.arange(200)[:, None]).astype(np.int32) % 7
    assert unigram_loss(rows, rows, 7) == pytest.approx(math.log(7), abs=1e-3)
    assert bigram_loss(rows, rows, 7) < 0.01
    assert as_batch(rows)["labels"].shape == (200, 8)
