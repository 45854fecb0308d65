"""How sure is a share of successes, does one model beat another on the same tasks, and how many tasks would tell?

Sources: Wilson 1927; Efron and Tibshirani 1993 (percentile bootstrap); Connor 1987 (size of paired studies), Fleiss
1981 (of independent ones).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Z95, Z80 = 1.959964, 0.841621
"""Normal quantiles: 95 % two-sided, 80 % power."""
DRAWS = 2000
DRAWN_AT_ONCE = 2**23
"""Most row numbers in memory at once."""


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def wilson(hits: float, trials: int) -> Interval:
    """A proportion with its score interval; `hits` may be fractional where trials are means of samples.

    Raises:
        ValueError: no trials, or more hits than trials.
    """
    if trials < 1 or not 0 <= hits <= trials:
        raise ValueError(f"a proportion needs 0 <= hits <= trials and a trial; found {hits} of {trials}")
    share, square = hits / trials, Z95 * Z95
    middle = (share + square / (2 * trials)) / (1 + square / trials)
    half = Z95 * math.sqrt(share * (1 - share) / trials + square / (4 * trials * trials)) / (1 + square / trials)
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half))


def draws_of_rows(rows: int, draws: int, seed: int = 0) -> Iterator[NDArray[np.int64]]:
    """Numbers of `rows` rows drawn with replacement, `draws` times: blocks (some draws, rows) of bounded size.

    One after the other the blocks are what `integers(0, rows, (draws, rows))` gives at once.
    """
    random = np.random.default_rng(seed)
    size = max(1, DRAWN_AT_ONCE // max(1, rows))
    for first in range(0, draws, size):
        yield random.integers(0, rows, (min(size, draws - first), rows))


def paired_difference(
    first: Sequence[float], second: Sequence[float], *, draws: int = DRAWS, seed: int = 0
) -> Interval:
    """Mean of `first` minus mean of `second` over the same tasks, by bootstrap over tasks.

    Raises:
        ValueError: the two differ in length, or are empty.
    """
    if not first or len(first) != len(second):
        raise ValueError(f"paired scores need the same tasks; found {len(first)} and {len(second)}")
    gaps = np.asarray(first, dtype=float) - np.asarray(second, dtype=float)
    means = np.concatenate([gaps[draw].mean(axis=1) for draw in draws_of_rows(len(gaps), draws, seed)])
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(gaps.mean()), float(low), float(high))


def tasks_needed(first: Sequence[float], second: Sequence[float]) -> int | None:
    """Tasks that would tell a difference as large as the one seen, at 5 % and 80 % power, were the same pairs drawn.

    From the spread of the paired differences; None where there is no difference.
    """
    gaps = np.asarray(first, dtype=float) - np.asarray(second, dtype=float)
    mean = float(gaps.mean())
    if mean == 0:
        return None
    null, real = math.sqrt(float((gaps**2).mean())), float(gaps.std())
    return math.ceil(((Z95 * null + Z80 * real) / mean) ** 2)


def samples_needed(first: float, second: float) -> int | None:
    """Samples in each of two independent groups that would tell two proportions, at 5 % and 80 % power."""
    if first == second:
        return None
    middle = (first + second) / 2
    null = Z95 * math.sqrt(2 * middle * (1 - middle))
    real = Z80 * math.sqrt(first * (1 - first) + second * (1 - second))
    return math.ceil(((null + real) / (first - second)) ** 2)
