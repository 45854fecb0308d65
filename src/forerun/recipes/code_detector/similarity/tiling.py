"""Greedy string tiling: which stretches of two token streams are the same, the longest first, none used twice.

Of all maximal common runs of at least `minimum` tokens the longest becomes a tile and its tokens are used up on both
sides; what is left of the others goes on, until none is long enough. Runs are found by their Karp-Rabin numbers
(`grams`) and compared token by token before they count. Order of the stretches does not matter, so reordering methods
hides nothing.

Repetitive code has very many common runs. Where the places exceed `SEEDS`, longer runs are looked for first, which
changes nothing in the result, since longer tiles come first anyway; what is used up is not looked at again.

Sources: Wise, "YAP3", SIGCSE 1996, doi:10.1145/236452.236525; Prechelt, Malpohl and Philippsen, "Finding plagiarisms
among a set of programs with JPlag", J. UCS 2002.
"""

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.recipes.code_detector.similarity.grams import Places, grams, same_places
from forerun.recipes.code_detector.similarity.streams import Tokens

SEEDS = 400_000
"""Pairs of places held at once."""
Used = NDArray[np.bool_]


@dataclass(frozen=True, order=True)
class Tile:
    """`length` tokens from `first` on in one stream equal those from `second` on in the other."""

    first: int
    second: int
    length: int


def tiles(a: Tokens, b: Tokens, minimum: int, used_a: Used | None = None, used_b: Used | None = None) -> list[Tile]:
    """Tiles of at least `minimum` tokens, by their place in `a`; used tokens (base code) can be in none.

    Raises:
        ValueError: `minimum` is below 1.
    """
    free_a = np.ones(len(a), dtype=np.bool_) if used_a is None else ~used_a
    free_b = np.ones(len(b), dtype=np.bool_) if used_b is None else ~used_b
    tile_list: list[Tile] = []
    ceiling = min(len(a), len(b)) + 1
    while ceiling > minimum:
        length, seeds = _feasible(a, b, free_a, free_b, minimum, ceiling)
        if not len(seeds[0]) and length == minimum:
            break
        _lay(_runs(*seeds, length), a, b, free_a, free_b, length, tile_list)
        ceiling = length
    return sorted(tile_list)


def _feasible(
    a: Tokens, b: Tokens, free_a: Used, free_b: Used, minimum: int, ceiling: int
) -> tuple[int, tuple[Places, Places]]:
    """The shortest run length whose places can be held, and these; below `ceiling`, which has been done."""
    low, high, length = minimum, ceiling - 1, minimum
    best: tuple[int, tuple[Places, Places]] | None = None
    while low <= high:
        seeds = _seeds(a, b, free_a, free_b, length, SEEDS)
        if seeds is None:
            low = length + 1
        else:
            best, high = (length, seeds), length - 1
        length = (low + high) // 2
    if best is not None:
        return best
    seeds = _seeds(a, b, free_a, free_b, ceiling - 1, len(a) * len(b))
    assert seeds is not None
    return ceiling - 1, (seeds[0][:SEEDS], seeds[1][:SEEDS])


def _seeds(a: Tokens, b: Tokens, free_a: Used, free_b: Used, length: int, limit: int) -> tuple[Places, Places] | None:
    """Places of equal runs of `length` free tokens; None where there are more than `limit`."""
    at_a, at_b = _free_runs(free_a, length), _free_runs(free_b, length)
    pairs = same_places(grams(a, length)[at_a], grams(b, length)[at_b], limit)
    return None if pairs is None else (at_a[pairs[0]], at_b[pairs[1]])


def _free_runs(free: Used, length: int) -> Places:
    """Places at which `length` free tokens in a row begin."""
    total = np.concatenate(([0], np.cumsum(free)))
    return np.flatnonzero(total[length:] - total[:-length] == length) if len(free) >= length else np.zeros(0, np.int64)


def _runs(first: Places, second: Places, length: int) -> list[tuple[int, int, int]]:
    """Maximal runs as (-length, first, second) from the places of runs of `length`."""
    if not len(first):
        return []
    diagonal = first - second
    order = np.lexsort((first, diagonal))
    first, second, diagonal = first[order], second[order], diagonal[order]
    breaks = np.flatnonzero((np.diff(diagonal) != 0) | (np.diff(first) != 1)) + 1
    starts = np.concatenate(([0], breaks))
    sizes = np.diff(np.concatenate((starts, [len(first)]))) + length - 1
    return list(zip((-sizes).tolist(), first[starts].tolist(), second[starts].tolist(), strict=True))


def _lay(
    runs: list[tuple[int, int, int]],
    a: Tokens,
    b: Tokens,
    free_a: Used,
    free_b: Used,
    minimum: int,
    tile_list: list[Tile],
) -> None:
    """Make tiles of the runs, longest first; marks what they use."""
    heapq.heapify(runs)
    while runs:
        negative, i, j = heapq.heappop(runs)
        size = -negative
        free = free_a[i : i + size] & free_b[j : j + size]
        if free.all():
            # Equal run numbers are no proof (`grams`): the tokens themselves decide.
            if np.array_equal(a[i : i + size], b[j : j + size]):
                free_a[i : i + size] = free_b[j : j + size] = False
                tile_list.append(Tile(i, j, size))
            continue
        edges = np.flatnonzero(np.diff(np.concatenate(([False], free, [False]))))
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            if end - begin >= minimum:
                heapq.heappush(runs, (begin - end, i + begin, j + begin))
