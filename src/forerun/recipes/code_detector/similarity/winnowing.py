"""Fingerprints by winnowing: a few of a file's runs of k tokens, chosen so that no long enough copy escapes.

Of every `window` runs in a row the one with the smallest number is kept, the rightmost of equals. Two files that share
a run of at least `guarantee` = window + k - 1 tokens share a fingerprint; no shared run below k tokens ever makes one.
About 2 / (window + 1) of the runs are kept.

Source: Schleimer, Wilkerson and Aiken, SIGMOD 2003, doi:10.1145/872757.872770.
"""

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from forerun.errors import InvalidSettings
from forerun.recipes.code_detector.similarity.grams import Grams, Places, grams
from forerun.recipes.code_detector.similarity.streams import Tokens

MIXER = np.uint64(0xBF58476D1CE4E5B9)
"""A multiplier of splitmix64: the smallest number must not depend on the order of the tokens' own numbers."""


@dataclass(frozen=True)
class Winnowing:
    """Sizes of runs and windows; `guarantee` tokens in a row that two files share are always found."""

    k: int = 6
    window: int = 4

    def __post_init__(self) -> None:
        if self.k < 1 or self.window < 1:
            raise InvalidSettings(
                f"winnowing: k and window must be at least 1; found k = {self.k}, window = {self.window}."
            )

    @property
    def guarantee(self) -> int:
        """Length of a shared run that cannot escape, in tokens."""
        return self.window + self.k - 1


@dataclass(frozen=True)
class Fingerprints:
    """Numbers of the chosen runs and the token each begins at, in order of the text."""

    numbers: Grams
    places: Places

    @property
    def distinct(self) -> NDArray[np.uint64]:
        """Each number once, sorted."""
        return np.unique(self.numbers)


def fingerprints(tokens: Tokens, sizes: Winnowing, base: Grams | None = None) -> Fingerprints:
    """Fingerprints of a file; runs whose number is in `base` (all runs of given code) are left out after choosing."""
    numbers = mixed(grams(tokens, sizes.k))
    if not len(numbers):
        return Fingerprints(numbers, np.zeros(0, dtype=np.int64))
    window = min(sizes.window, len(numbers))
    # argmin takes the first of equal numbers; windows are reversed because winnowing keeps the rightmost (section 3).
    reversed_windows = sliding_window_view(numbers, window)[:, ::-1]
    minima = np.arange(len(reversed_windows)) + window - 1 - reversed_windows.argmin(axis=1)
    places = np.unique(minima)
    if base is not None:
        places = places[~np.isin(numbers[places], base)]
    return Fingerprints(numbers[places], places.astype(np.int64))


def base_runs(tokens: Tokens, sizes: Winnowing) -> Grams:
    """Every run of given code, to be left out of others' fingerprints."""
    return np.unique(mixed(grams(tokens, sizes.k)))


def mixed(numbers: Grams) -> Grams:
    """The numbers in another order; one to one."""
    numbers = (numbers ^ (numbers >> np.uint64(31))) * MIXER
    return numbers ^ (numbers >> np.uint64(29))
