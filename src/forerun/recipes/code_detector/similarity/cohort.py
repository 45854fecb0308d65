"""Every file of an assignment against every other: scores of all pairs, the best ones with evidence.

For all pairs, without looking at each: shared fingerprints (one sparse product), and the *cover*, the share of both
files that lies in runs of `minimum_tile` marks which the other has too. No tiling can reach more than the cover, so the
pairs are tiled from the highest cover down, until none that is left can be among the best `pair_limit`.

A pair's *standing* is its distance from the cohort's median in robust standard deviations (1.4826 · MAD): exercises
with one obvious solution have high scores everywhere, and then a high score is nothing special.
"""

import heapq
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from forerun.errors import InvalidSettings
from forerun.recipes.code_detector.similarity.compare import (
    BaseCode,
    FileComparison,
    PreparedFile,
    Sizes,
    SourceFile,
    base_code,
    compare,
    prepare,
    share,
    syntax_tiles,
)
from forerun.recipes.code_detector.similarity.grams import grams
from forerun.records import Record

Matrix = NDArray[np.float64]
LEAST_FILES = 10
"""Below this a cohort has no distribution to stand out from."""
ROBUST = 1.4826
"""Makes the median absolute deviation of normal values their standard deviation."""
SMALLEST_SPREAD = 0.01
CHUNK, ROUND = 64, 256
"""Files a worker prepares at once; pairs that are tiled before the bound is looked at again."""


class RankedPair(Record):
    """One pair among the best, with where it stands."""

    comparison: FileComparison
    standing: float | None
    """Robust standard deviations above the cohort's median; null in a cohort that is too small."""


class CohortReport(Record):
    """The best pairs of a cohort."""

    files: int
    pairs: int
    tiled: int
    """Pairs that were tiled to find the best."""
    median_cover: float
    guarantee: int
    """Shared words in a row that are always found."""
    best: list[RankedPair]


@dataclass(frozen=True)
class PairScores:
    """Scores of all pairs of n files: symmetric matrices (n, n) with zeros on the diagonal."""

    words: Matrix
    cover: Matrix


def compare_all(
    files: Sequence[SourceFile],
    *,
    sizes: Sizes | None = None,
    base: Sequence[SourceFile] = (),
    pair_limit: int = 50,
    workers: int = 1,
    until: float | None = None,
) -> CohortReport:
    """The best `pair_limit` pairs by their tiled share of syntax; ties by the share of words.

    Raises:
        NotSupported: a language without a grammar.
        InvalidSettings: fewer than two files, or `pair_limit` or `workers` below 1.
        TimeoutError: it is later than `until`, by `time.monotonic`; looked at between pairs.
    """
    if len(files) < 2 or pair_limit < 1 or workers < 1:
        raise InvalidSettings(
            f"a cohort needs two files, one shown pair and one worker at least; found {len(files)} files, "
            f"shown = {pair_limit}, workers = {workers}."
        )
    sizes = sizes or Sizes()
    # spawn: a forked worker would inherit locks that threads of torch or numpy hold at that moment.
    with ProcessPoolExecutor(workers, get_context("spawn")) if workers > 1 else nullcontext() as pool:
        prepared = _prepared(files, sizes, base_code(base, sizes), pool)
        scores = pair_scores(prepared, sizes)
        best, tiled = _best_pairs(prepared, scores, sizes, pair_limit, pool, until)
    standing = standings(scores.cover)
    above = np.triu_indices(len(files), k=1)
    return CohortReport(
        files=len(files),
        pairs=len(above[0]),
        tiled=tiled,
        median_cover=float(np.median(scores.cover[above])),
        guarantee=sizes.winnowing.guarantee,
        best=[
            RankedPair(
                comparison=compare(prepared[i], prepared[j], sizes),
                standing=None if standing is None else float(standing[i, j]),
            )
            for i, j in best
        ],
    )


def pair_scores(prepared: Sequence[PreparedFile], sizes: Sizes) -> PairScores:
    """Shared words and cover of all pairs; files that are too small score 0."""
    small = np.asarray([file.is_too_small for file in prepared])
    words, cover = shared_words(prepared), cover_of(prepared, sizes.minimum_tile)
    for matrix in (words, cover):
        matrix[small, :] = matrix[:, small] = 0
        np.fill_diagonal(matrix, 0)
    return PairScores(words, cover)


def standings(scores: Matrix) -> Matrix | None:
    """Each pair's distance from the median of all in robust standard deviations; None for a small cohort."""
    if len(scores) < LEAST_FILES:
        return None
    values = scores[np.triu_indices(len(scores), k=1)]
    middle = np.median(values)
    spread = max(ROBUST * float(np.median(np.abs(values - middle))), SMALLEST_SPREAD)
    return (scores - middle) / spread


def _prepared(
    files: Sequence[SourceFile], sizes: Sizes, base: BaseCode | None, pool: Executor | None
) -> list[PreparedFile]:
    work = partial(prepare, sizes=sizes, base=base)
    return list(map(work, files) if pool is None else pool.map(work, files, chunksize=CHUNK))


def shared_words(prepared: Sequence[PreparedFile]) -> Matrix:
    """2 · shared / all fingerprints, for all pairs."""
    from scipy.sparse import csr_matrix

    distinct = [file.fingerprints.distinct for file in prepared]
    sizes = np.asarray([len(numbers) for numbers in distinct])
    _, columns = np.unique(np.concatenate(distinct), return_inverse=True)
    shape = (len(prepared), int(columns.max()) + 1 if len(columns) else 1)
    rows = np.concatenate(([0], np.cumsum(sizes)))
    incidence = csr_matrix((np.ones(len(columns), dtype=np.int32), columns, rows), shape=shape)
    shared = (incidence @ incidence.T).toarray()
    return 2 * shared / np.maximum(sizes[:, None] + sizes[None, :], 1)


def cover_of(prepared: Sequence[PreparedFile], k: int) -> Matrix:
    """2 · min(marks of i in runs that j has, marks of j in runs that i has) / all marks, for all pairs."""
    runs = [_own_runs(file, k) for file in prepared]
    number, places = len(prepared), [place for _, place in runs]
    distinct, column = np.unique(np.concatenate([numbers for numbers, _ in runs]), return_inverse=True)
    owner = np.repeat(np.arange(number), [len(place) for place in places])
    pairs = np.unique(column.astype(np.int64) * number + owner)  # which file has which run, each once
    begins = np.searchsorted(pairs // number, np.arange(len(distinct) + 1))
    holders = pairs % number
    columns = np.split(column, np.cumsum([len(place) for place in places])[:-1])
    covered = np.zeros((number, number))
    for file in range(number):
        end = np.zeros(number, dtype=np.int64)  # of what is covered so far, by other file
        for run, place in zip(columns[file].tolist(), places[file].tolist(), strict=True):
            low, high = begins[run], begins[run + 1]
            if high - low > 1:
                others = holders[low:high]
                covered[file, others] += np.minimum(k, place + k - end[others])
                end[others] = place + k
    marks = np.asarray([file.own_marks for file in prepared])
    return 2 * np.minimum(covered, covered.T) / np.maximum(marks[:, None] + marks[None, :], 1)


def _own_runs(file: PreparedFile, k: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Runs of `k` marks that are free of base code, and where they begin."""
    numbers = grams(file.streams.syntax.tokens, k)
    used = np.concatenate(([0], np.cumsum(file.used_syntax)))
    places = np.flatnonzero(used[k : k + len(numbers)] == used[: len(numbers)])
    return numbers[places], places


def _best_pairs(
    prepared: Sequence[PreparedFile],
    scores: PairScores,
    sizes: Sizes,
    pair_limit: int,
    pool: Executor | None,
    until: float | None,
) -> tuple[list[tuple[int, int]], int]:
    """The pairs of the highest tiled share, best first, and how many were tiled."""
    above = np.triu_indices(len(prepared), k=1)
    bound = scores.cover[above]
    order = np.argsort(-bound, kind="stable")
    best: list[tuple[float, float, int, int]] = []  # a heap, the worst of the best first
    tiled = 0
    while tiled < len(order):
        batch = order[tiled : tiled + ROUND]
        highest = bound[batch[0]]
        if highest == 0 or (len(best) == pair_limit and highest < best[0][0]):
            break
        pairs = [(int(above[0][n]), int(above[1][n])) for n in batch]
        for (i, j), score in zip(pairs, _tiled(prepared, pairs, sizes, pool), strict=True):
            require_time(until)
            heapq.heappush(best, (score, float(scores.words[i, j]), i, j))
            if len(best) > pair_limit:
                heapq.heappop(best)
        tiled += len(batch)
    return [(i, j) for _, _, i, j in sorted(best, reverse=True)], tiled


def require_time(until: float | None) -> None:
    """Give up where it is later than `until`.

    Raises:
        TimeoutError: it is.
    """
    if until is not None and time.monotonic() > until:
        raise TimeoutError("comparing these files takes longer than is allowed")


def _tiled(
    prepared: Sequence[PreparedFile], pairs: Sequence[tuple[int, int]], sizes: Sizes, pool: Executor | None
) -> Iterable[float]:
    work = partial(tiled_share, sizes=sizes)
    files = [(prepared[i], prepared[j]) for i, j in pairs]
    return map(work, files) if pool is None else pool.map(work, files, chunksize=CHUNK)


def tiled_share(pair: tuple[PreparedFile, PreparedFile], sizes: Sizes) -> float:
    """The tiled share of the syntax of two files."""
    a, b = pair
    return share(sum(tile.length for tile in syntax_tiles(a, b, sizes)), a.own_marks, b.own_marks).score
