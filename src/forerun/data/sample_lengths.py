"""How long samples are when only their mean is known, and what becomes of those longer than the limit. No torch.

`cut` takes them as geometric around the mean and cuts at the limit, where the cut ones pile up. `drop` leaves longer
ones out, so that none piles up: of all distributions up to the limit with that mean, the one that assumes least, an
exponential with both ends (E. T. Jaynes, Phys. Rev. 106:620, 1957); its density rises where the mean is beyond half
the limit. In tokens.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

RISING, FALLING = -700.0, 1e7
"""Steepest slopes: `math.exp` of more than 709 leaves the range of a double."""
FLAT = 1e-6
"""Slope below which the ends of an exponential differ by less than is worth a division."""


@dataclass(frozen=True)
class SampleLengths:
    """Lengths of samples of mean `mean` and at most `limit`."""

    mean: float
    limit: int
    drops: bool = False
    """Whether longer samples are left out, rather than cut."""

    def share_up_to(self, length: int) -> float:
        """Share of samples of at most `length` tokens."""
        if length >= self.limit or self.mean <= 1:
            return 1.0
        if not self.drops:
            return 1 - (1 - 1 / self.mean) ** length
        return _rise(self._slope, length / self.limit)

    def quantile(self, share: float) -> int:
        """Length that `share` of the samples do not exceed; 0 < `share` < 1."""
        if self.mean <= 1:
            return 1
        if not self.drops:
            return min(self.limit, max(1, math.ceil(math.log(1 - share) / math.log(1 - 1 / self.mean))))
        slope = self._slope
        place = share if abs(slope) < FLAT else -math.log1p(share * math.expm1(-slope)) / slope
        return min(self.limit, max(1, math.ceil(place * self.limit)))

    def expected_longest(self, size: int) -> float:
        """Expected length of the longest of `size` samples."""
        return sum(1 - self.share_up_to(length) ** size for length in range(self.limit)) if self.mean > 1 else 1.0

    @property
    def _slope(self) -> float:
        """Fall of the logarithm of the density from 0 to the limit."""
        # samples are whole tokens, so the continuous length is half a token less in the mean
        target = (self.mean - 0.5) / self.limit
        return _root(lambda slope: _mean_place(slope) - target)


def _rise(slope: float, place: float) -> float:
    """Share of an exponential with both ends below `place`, a share of its length."""
    return place if abs(slope) < FLAT else math.expm1(-slope * place) / math.expm1(-slope)


def _mean_place(slope: float) -> float:
    """Mean of an exponential with both ends, as a share of its length: falls with the slope from 1 to 0."""
    if abs(slope) < 1e-3:
        return 0.5 - slope / 12
    return 1 / slope - (1 / math.expm1(slope) if slope < -RISING else 0.0)


def _root(falling: Callable[[float], float]) -> float:
    low, high = RISING, FALLING
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return (low + high) / 2
