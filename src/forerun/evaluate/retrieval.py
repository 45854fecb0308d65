"""How well a similarity finds what belongs together, over the full set of candidates; exact definitions.

Every item with at least one other of its group is a query, all other items are its candidates. R is the number of
other members of its group. Ties are counted at their expected place, as if equal candidates were in random order, so
that a similarity of 0 for everything gets what chance would.

- MAP@R: mean over queries of (1/R) Σ over ranks i ≤ R of precision at i where rank i is a
  member (Musgrave et al. 2020, arXiv 2003.08505).
- recall@k: share of queries with a member among the first k.
- MRR: mean of 1 / rank of the first member.

For expected values under ties a fixed number of random orders is averaged, seeded.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.records import Record

Matrix = NDArray[np.float64]
ORDERS = 5
"""Random orders of ties."""


class RetrievalReport(Record):
    """Figures of one similarity on one set; shares from 0 to 1."""

    queries: int
    candidates: int
    map_at_r: float
    recall_at_1: float
    recall_at_10: float
    mrr: float


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
    figures = np.zeros(4)
    for _ in range(orders):
        shuffled = random.permutation(number)
        for query in queries:
            others = shuffled[allowed[query, shuffled]]
            ranked = others[np.argsort(-similarity[query, others], kind="stable")]
            figures += _of_query(group[ranked] == group[query], int(members[query]))
    map_at_r, recall_1, recall_10, mrr = (figures / (orders * len(queries))).tolist()
    return RetrievalReport(
        queries=len(queries),
        candidates=int(allowed.sum(axis=1).max()),
        map_at_r=map_at_r,
        recall_at_1=recall_1,
        recall_at_10=recall_10,
        mrr=mrr,
    )


def _of_query(hits: NDArray[np.bool_], members: int) -> Matrix:
    first = hits[:members]
    precision = np.cumsum(first) / np.arange(1, members + 1)
    rank = int(np.argmax(hits)) + 1
    return np.asarray([float((precision * first).sum()) / members, float(rank <= 1), float(rank <= 10), 1 / rank])
