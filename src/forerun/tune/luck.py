"""Is the best score more than luck, what may more trials bring, and which settings mattered? No torch.

- The best of n equally good trials lies above each of them: with normal scores of mean m and noise s its quantile q is
  m + s · Phi^-1(q^(1/n)). A best-so-far curve inside that band has found nothing.
- Expected gain of k more trials like those so far (normal, mean m, deviation d, best b): the integral from b upwards of
  1 - Phi((x - m) / d)^k, times the share of d^2 that is not noise.
- Importance: share of the variance that a random forest explains by a dimension, over trials drawn with replacement;
  beside it the same for scores in random order, which is what a dimension gets that does nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median, pstdev

import numpy as np

BAND = (0.1, 0.5, 0.9)
STEPS = 400
"""Steps of the integral over `WIDTH` deviations."""
WIDTH = 8.0
SPREAD_KNOWN_FROM = 3
"""Scores from which on their spread says what another trial may bring."""
LEAST_TRIALS = 8
"""Least trials for importances; with fewer nothing can be told."""
FORESTS, TREES = 30, 20
INTERVAL = (0.05, 0.95)


@dataclass(frozen=True)
class BandPoint:
    """Best of `trials` equal trials: quantiles 10, 50 and 90 %."""

    trials: int
    low: float
    middle: float
    high: float


def best_of(trials: int, centre: float, noise: float) -> BandPoint:
    """Score of the best of `trials` equally good trials; `noise` is the standard deviation of one score."""
    low, middle, high = (
        centre + (noise * NormalDist().inv_cdf(share ** (1 / trials)) if noise > 0 else 0.0) for share in BAND
    )
    return BandPoint(trials, low, middle, high)


def noise_band(scores: Sequence[float], noise: float) -> list[BandPoint]:
    """The band beside the best-so-far curve of `scores`: were all as good as their median."""
    return [best_of(number, median(scores), noise) for number in range(1, len(scores) + 1)]


def best_so_far(scores: Sequence[float]) -> list[float]:
    """Highest score up to each trial."""
    return [max(scores[:number]) for number in range(1, len(scores) + 1)]


def expected_gain(scores: Sequence[float], more: int, noise: float) -> float | None:
    """By how much `more` trials like those so far are expected to raise the best true score; None below three scores.

    Expected for draws of the same spread: a search that learns does better, one that has converged worse.
    """
    if len(scores) < SPREAD_KNOWN_FROM:
        return None
    if more < 1:
        return 0.0
    mean, deviation, best = fmean(scores), pstdev(scores), max(scores)
    if deviation == 0:
        return 0.0
    step, gain = WIDTH * deviation / STEPS, 0.0
    for number in range(STEPS):
        place = best + (number + 0.5) * step
        gain += (1 - NormalDist(mean, deviation).cdf(place) ** more) * step
    return gain * max(0.0, 1 - noise**2 / deviation**2)


def pooled_noise(groups: Sequence[Sequence[float]]) -> float | None:
    """Standard deviation within groups (starting points of one setting); None without two in any group."""
    square = sum(sum((value - fmean(group)) ** 2 for value in group) for group in groups)
    freedom = sum(len(group) - 1 for group in groups)
    return math.sqrt(square / freedom) if freedom > 0 else None


@dataclass(frozen=True)
class Importance:
    """Importance of one dimension, with its 90 % interval and what pure chance gives."""

    name: str
    value: float
    low: float
    high: float
    by_chance: float
    """Share that 95 % of dimensions without any effect stay below, at this number of trials."""

    @property
    def is_above_chance(self) -> bool:
        """Whether it can be told from a dimension that does nothing."""
        return self.low > self.by_chance


def importances(
    points: Sequence[Mapping[str, float | int | str | bool]], scores: Sequence[float], names: Sequence[str]
) -> list[Importance]:
    """Importance of each dimension, the largest first; none with fewer than `LEAST_TRIALS`."""
    if len(scores) < LEAST_TRIALS:
        return []
    features, owners = _encoded(points, names)
    random = np.random.default_rng(0)
    measured = np.asarray([_shares(features, np.asarray(scores), owners, names, random) for _ in range(FORESTS)])
    chance = np.asarray(
        [_shares(features, random.permutation(np.asarray(scores)), owners, names, random) for _ in range(FORESTS)]
    )
    low, high = np.quantile(measured, INTERVAL, axis=0)
    by_chance = np.quantile(chance, INTERVAL[1], axis=0)
    dimensions = [
        Importance(name, float(measured[:, n].mean()), float(low[n]), float(high[n]), float(by_chance[n]))
        for n, name in enumerate(names)
    ]
    return sorted(dimensions, key=lambda importance: -importance.value)


def _shares(
    features: np.ndarray, scores: np.ndarray, owners: Sequence[str], names: Sequence[str], random: np.random.Generator
) -> list[float]:
    from sklearn.ensemble import RandomForestRegressor

    rows = random.integers(0, len(scores), len(scores))
    if np.ptp(scores[rows]) == 0:
        return [0.0] * len(names)
    forest = RandomForestRegressor(n_estimators=TREES, random_state=int(random.integers(2**31)), n_jobs=1)
    shares = forest.fit(features[rows], scores[rows]).feature_importances_
    return [float(sum(s for s, owner in zip(shares, owners, strict=True) if owner == name)) for name in names]


def _encoded(
    points: Sequence[Mapping[str, float | int | str | bool]], names: Sequence[str]
) -> tuple[np.ndarray, list[str]]:
    """Features of the forest: numbers as they are, names one-hot; a dimension that was not asked lies below all."""
    columns, owners = [], []
    for name in names:
        values = [point.get(name) for point in points]
        texts = sorted({value for value in values if isinstance(value, str)})
        if texts:
            columns += [[float(value == text) for value in values] for text in texts]
            owners += [name] * len(texts)
            continue
        numbers = [float(value) for value in values if value is not None]
        below = min(numbers, default=0.0) - 1
        columns.append([below if value is None else float(value) for value in values])
        owners.append(name)
    return np.asarray(columns).T, owners
