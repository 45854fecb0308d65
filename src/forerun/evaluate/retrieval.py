"""How well a similarity finds what belongs together, over the full set of candidates; exact definitions.

Every item with at least one other of its group is a query, all other items are its candidates. R is the number of
other members of its group. Ties are counted at their expected place, as if equal candidates were in random order, so
that a similarity of 0 for everything gets what chance would.

- MAP@R: mean over queries of (1/R) Σ over ranks i ≤ R of precision at i where rank i is a
  member (Musgrave et al. 2020, arXiv 2003.08505).
- recall@k: share of queries with a member among the first k.
- MRR: mean of 1 / rank of the first member.

For expected values under ties a fixed number of random orders is averaged, seeded. Intervals are 95 %, over groups that
are resampled whole; over queries where there are fewer than LEAST_GROUPS groups, which says nothing about other groups.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.records import Record

Matrix = NDArray[np.float64]
Interval = tuple[float, float]
ORDERS = 5
"""Random orders of ties."""
DRAWS, LEAST_GROUPS = 400, 10


class RetrievalReport(Record):
    """Figures of one similarity on one set; shares from 0 to 1."""

    queries: int
    candidates: int
    map_at_r: float
    recall_at_1: float
    recall_at_10: float
    mrr: float
    intervals: dict[str, Interval]
    """95 % interval of each of the four figures, by its name."""


def retrieval(
    similarity: Matrix,
    groups: Sequence[str],
    *,
    kinds: Sequence[str] | None = None,
    seed: int = 0,
    orders: int = ORDERS,
) -> RetrievalReport:
    """Figures of a square `similarity` (n, n) of items with `groups` (n,); its diagonal is not looked at.

    With `kinds` (languages, say) only items of another kind than the query's are its candidates.

    Raises:
        ValueError: shapes differ, or no group has two members.
    """
    number = len(groups)
    if similarity.shape != (number, number):
        raise ValueError(f"one row and column an item; found {similarity.shape} for {number} groups")
    _, group = np.unique(np.asarray(groups), return_inverse=True)
    if kinds is None:
        allowed = ~np.eye(number, dtype=np.bool_)
    else:
        allowed = np.asarray(kinds)[:, None] != np.asarray(kinds)[None, :]
    members = ((group[:, None] == group[None, :]) & allowed).sum(axis=1)
    queries = np.flatnonzero(members)
    if not len(queries):
        raise ValueError("retrieval needs a group with two members")
    random = np.random.default_rng(seed)
    figures = np.zeros((len(queries), 4))
    for _ in range(orders):
        shuffled = random.permutation(number)
        for row, query in enumerate(queries):
            others = shuffled[allowed[query, shuffled]]
            ranked = others[np.argsort(-similarity[query, others], kind="stable")]
            figures[row] += _of_query(group[ranked] == group[query], int(members[query])) / orders
    map_at_r, recall_1, recall_10, mrr = figures.mean(axis=0).tolist()
    return RetrievalReport(
        queries=len(queries),
        candidates=int(allowed.sum(axis=1).max()),
        map_at_r=map_at_r,
        recall_at_1=recall_1,
        recall_at_10=recall_10,
        mrr=mrr,
        intervals=_intervals(figures, group[queries], random),
    )


def _intervals(figures: Matrix, group: NDArray[np.int64], random: np.random.Generator) -> dict[str, Interval]:
    """95 % interval of the mean of each column of `figures` (queries, 4), by name."""
    _, owner = np.unique(group, return_inverse=True)
    if owner.max() + 1 < LEAST_GROUPS:
        owner = np.arange(len(figures))
    number = int(owner.max()) + 1
    sums = np.stack([np.bincount(owner, weights=column, minlength=number) for column in figures.T], axis=1)
    counts = np.bincount(owner, minlength=number)
    resamples = random.integers(number, size=(DRAWS, number))
    means = sums[resamples].sum(axis=1) / counts[resamples].sum(axis=1)[:, None]
    low, high = np.quantile(means, [0.025, 0.975], axis=0)
    names = ("map_at_r", "recall_at_1", "recall_at_10", "mrr")
    return {name: (float(low[n]), float(high[n])) for n, name in enumerate(names)}


def _of_query(hits: NDArray[np.bool_], members: int) -> Matrix:
    first = hits[:members]
    precision = np.cumsum(first) / np.arange(1, members + 1)
    rank = int(np.argmax(hits)) + 1
    return np.asarray([float((precision * first).sum()) / members, float(rank <= 1), float(rank <= 10), 1 / rank])
