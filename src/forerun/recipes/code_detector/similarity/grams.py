"""Runs of k tokens as 64-bit numbers (Karp and Rabin 1987), and which places of two files hold the same run.

The number of a run is a polynomial of its tokens modulo 2^64. Two different runs can share a number; whoever shows a
match compares the tokens themselves (`tiling`), so that no evidence rests on a number alone.
"""

import numpy as np
from numpy.typing import NDArray

from forerun.recipes.code_detector.similarity.streams import Tokens

BASE, MASK = 0x9E3779B97F4A7C15, 2**64 - 1
"""The base is odd, so that no power of it is lost; the fractional part of the golden ratio, as in Knuth's
multiplicative hash."""

Grams = NDArray[np.uint64]
Places = NDArray[np.int64]


def grams(tokens: Tokens, k: int) -> Grams:
    """Numbers of every run of `k` tokens: max(0, n - k + 1) of them.

    Raises:
        ValueError: `k` is below 1.
    """
    if k < 1:
        raise ValueError(f"a run needs at least one token; found k = {k}")
    count = len(tokens) - k + 1
    if count < 1:
        return np.zeros(0, dtype=np.uint64)
    length, numbers, power = 1, tokens.copy(), BASE
    for bit in f"{k:b}"[1:]:  # runs of 2n from those of n, one longer where k's next binary digit is 1
        numbers = numbers[: len(numbers) - length] * np.uint64(power) + numbers[length:]
        power, length = power * power & MASK, length * 2
        if bit == "1":
            numbers = numbers[: len(numbers) - 1] * np.uint64(BASE) + tokens[length : length + len(numbers) - 1]
            power, length = power * BASE & MASK, length + 1
    return numbers[:count]


def same_places(first: Grams, second: Grams, limit: int) -> tuple[Places, Places] | None:
    """All pairs of places (i, j) with first[i] == second[j], by i; None where there are more than `limit`."""
    order = np.argsort(second, kind="stable")
    ranked = second[order]
    low, high = np.searchsorted(ranked, first, "left"), np.searchsorted(ranked, first, "right")
    number = high - low
    total = int(number.sum())
    if total > limit:
        return None
    rows = np.repeat(np.arange(len(first), dtype=np.int64), number)
    begins = np.repeat(low - (np.cumsum(number) - number), number)
    return rows, order[begins + np.arange(total)].astype(np.int64)


def covered(numbers: Grams, run_numbers: Grams, k: int, length: int) -> NDArray[np.bool_]:
    """Whether each of `length` tokens lies in a run of `k` whose number is in `run_numbers`."""
    is_match = np.isin(numbers, run_numbers)
    changes = np.zeros(length + 1, dtype=np.int64)
    starts = np.flatnonzero(is_match)
    np.add.at(changes, starts, 1)
    np.add.at(changes, starts + k, -1)
    return np.cumsum(changes[:-1]) > 0
