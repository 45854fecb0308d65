"""Languages of known entropy: what a model can reach at best is known before it is trained.

- `induction`: a run of random symbols, then the same run again and again. What comes next in the first run nobody can
  know (log V nats); after it everybody can who looks back at what followed the last time. A model whose attention is
  dead sees the present symbol only, after which all symbols are equally likely: it stays at chance.
- `markov`: each symbol is drawn by the two before it, from random probabilities. Its entropy rate, and what a table of
  pairs reaches at best, are computed from the stationary distribution.

Every window is one row of T + 1 symbols: inputs and, one further, targets.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Synthetic = Literal["induction", "markov"]
SYMBOLS: dict[Synthetic, int] = {"induction": 16, "markov": 12}
RUN_SHARE = 0.25
"""Length of an induction run as a share of the window. It is the same for all windows, so that looking a fixed way back
is enough: a model learns that in a few hundred updates, finding it by content in many thousands."""
SHARPNESS = 0.15
"""Dirichlet parameter of Markov probabilities: small makes a few successors likely."""
TRAIN_WINDOWS, HELD_OUT_WINDOWS = 16_384, 256
Windows = NDArray[np.int32]


@dataclass(frozen=True)
class SyntheticLanguage:
    """Windows by split, and their entropies."""

    name: Synthetic
    symbols: int
    train: Windows
    val: Windows
    test: Windows
    entropy: float
    """Nats per target that nobody can go below, mean over `test`."""
    without_attention: float
    """Nats per target that knowing the present symbol alone reaches at best."""
    determined: NDArray[np.bool_] | None = None
    """Targets of `test` (windows, T) that attention can know for certain; None where there are none."""


def synthetic(name: Synthetic, length: int, seed: int, train_windows: int | None = None) -> SyntheticLanguage:
    """A language of windows of `length` targets; the same for a seed."""
    counts = [train_windows or TRAIN_WINDOWS, HELD_OUT_WINDOWS, HELD_OUT_WINDOWS]
    return (_induction if name == "induction" else _markov)(length, counts, np.random.default_rng((seed, 1)))


def _induction(length: int, counts: list[int], random: np.random.Generator) -> SyntheticLanguage:
    parts, run = [], max(2, round(RUN_SHARE * length))
    for count in counts:
        symbols = random.integers(SYMBOLS["induction"], size=(count, length + 1), dtype=np.int32)
        parts.append(symbols[:, np.arange(length + 1) % run])
    is_determined = np.broadcast_to(np.arange(1, length + 1) >= run, (counts[-1], length))
    chance = math.log(SYMBOLS["induction"])
    entropy = chance * float((~is_determined).mean())
    train, val, test = parts
    return SyntheticLanguage("induction", SYMBOLS["induction"], train, val, test, entropy, chance, is_determined)


def _markov(length: int, counts: list[int], random: np.random.Generator) -> SyntheticLanguage:
    size = SYMBOLS["markov"]
    table = random.dirichlet(np.full(size, SHARPNESS), size=(size, size))
    pairs = stationary_pairs(table)
    parts = []
    for count in counts:
        first = random.choice(size * size, size=count, p=pairs.ravel())
        rows = np.empty((count, length + 1), dtype=np.int32)
        rows[:, 0], rows[:, 1] = first // size, first % size
        for place in range(2, length + 1):
            sums = table[rows[:, place - 2], rows[:, place - 1]].cumsum(axis=1)
            # Scaled by the last sum, which rounding can leave just below 1: a draw above it would be no symbol.
            rows[:, place] = (random.random(count)[:, None] * sums[:, -1:] >= sums).sum(axis=1)
        parts.append(rows)
    follows = (pairs[:, :, None] * table).sum(axis=0)
    alone = _entropy(follows / follows.sum(axis=1, keepdims=True), pairs.sum(axis=0))
    rate = _entropy(table.reshape(size * size, size), pairs.ravel())
    mean = (alone + (length - 1) * rate) / length  # nothing stands before the first symbol
    return SyntheticLanguage("markov", size, parts[0], parts[1], parts[2], mean, alone)


def stationary_pairs(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Long-run share of each pair (a, b) of a chain with P(c | a, b) = `table[a, b, c]`."""
    pairs = np.full(table.shape[:2], 1.0 / table.shape[0] ** 2)
    for _ in range(10_000):
        after = np.einsum("ab,abc->bc", pairs, table)
        if np.abs(after - pairs).max() < 1e-14:
            break
        pairs = after
    return pairs / pairs.sum()


def _entropy(rows: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """Mean entropy in nats of the distributions `rows`, weighted."""
    safe = np.where(rows > 0, rows, 1.0)
    return float(-(weights[:, None] * rows * np.log(safe)).sum() / weights.sum())
