import math

import numpy as np
import pytest

from forerun.recipes.okadfa.data.synthetic_language import SYMBOLS, stationary_pairs, synthetic


def test_induction_repeats_a_run_that_nobody_can_know():
    language = synthetic("induction", 32, seed=0, train_windows=500)
    assert language.train.shape == (500, 33)
    assert np.array_equal(language.train[:, 8:], language.train[:, :-8])
    assert language.determined is not None
    assert language.determined.mean() == 25 / 32  # the first 8 of 33 symbols are new, and 7 of them are targets
    assert language.entropy == pytest.approx(math.log(16) * 7 / 32)
    assert len(np.unique(language.train[:, :8], axis=0)) > 490


def test_the_present_symbol_says_nothing_in_induction():
    rows = synthetic("induction", 32, seed=1, train_windows=4000).train
    pairs = np.zeros((16, 16))
    np.add.at(pairs, (rows[:, :-1].ravel(), rows[:, 1:].ravel()), 1)
    shares = pairs / pairs.sum(axis=1, keepdims=True)
    entropy = -(shares * np.log(shares)).sum(axis=1).mean()
    assert entropy == pytest.approx(math.log(16), abs=0.01)


def test_markov_has_the_entropy_that_it_says():
    """Conditional entropies counted in a long sample, against the computed ones; the sample's are a little low."""
    language = synthetic("markov", 64, seed=3, train_windows=20_000)
    rows, size = language.train.astype(np.int64), SYMBOLS["markov"]
    first, second, third = rows[:, 1:-2].ravel(), rows[:, 2:-1].ravel(), rows[:, 3:].ravel()

    def entropy(contexts, count):
        table = np.zeros((count, size))
        np.add.at(table, (contexts, third), 1)
        totals = table.sum(axis=1, keepdims=True)
        shares = np.divide(table, totals, where=totals > 0, out=np.zeros_like(table))
        logs = np.log(np.where(shares > 0, shares, 1))
        return -(table * logs).sum() / table.sum()

    two = entropy(first * size + second, size * size)
    one = entropy(second, size)
    assert one == pytest.approx(language.without_attention, abs=0.01)
    assert two == pytest.approx((language.entropy * 64 - language.without_attention) / 63, abs=0.01)
    assert language.entropy < language.without_attention - 0.3


def test_stationary_pairs_of_a_chain_of_independent_symbols():
    table = np.broadcast_to([0.2, 0.8], (2, 2, 2))
    assert np.allclose(stationary_pairs(table), np.outer([0.2, 0.8], [0.2, 0.8]))


def test_the_same_for_a_seed():
    assert np.array_equal(synthetic("markov", 16, 7, 8).train, synthetic("markov", 16, 7, 8).train)
    assert not np.array_equal(synthetic("markov", 16, 7, 8).train, synthetic("markov", 16, 8, 8).train)
