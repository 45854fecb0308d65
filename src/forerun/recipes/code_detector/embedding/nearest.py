"""The nearest neighbours of files by a trained embedding, with the pieces that make them so."""

from collections.abc import Sequence

import numpy as np

from forerun.recipes.code_detector.embedding.vectors import EmbeddedFile, FileVectors
from forerun.recipes.code_detector.similarity.compare import Evidence
from forerun.records import Record


class NearPair(Record):
    """Two files whose vectors are close."""

    a: str
    b: str
    cosine: float
    unrelated: float
    """Share of pairs of unrelated files that are at least as close."""
    evidence: list[Evidence]


def nearest_pairs(
    files: Sequence[EmbeddedFile], embedding: FileVectors, pair_limit: int, query: int | None = None
) -> list[NearPair]:
    """The closest pairs of all, or those of the file at place `query`; files that are too small are in none."""
    usable = [n for n, each in enumerate(files) if not each.file.is_too_small]
    if query is not None and query not in usable:
        return []
    vectors = np.stack([files[n].vector for n in usable]) if usable else np.zeros((0, 1), np.float32)
    cosines = vectors @ vectors.T
    first, second = np.triu_indices(len(usable), k=1)
    if query is not None:
        row = usable.index(query)
        second = np.asarray([n for n in range(len(usable)) if n != row], dtype=np.int64)
        first = np.full(len(second), row)
    order = np.argsort(-cosines[first, second], kind="stable")[:pair_limit]
    return [
        _pair(
            files[usable[int(first[n])]], files[usable[int(second[n])]], float(cosines[first[n], second[n]]), embedding
        )
        for n in order
    ]


def _pair(a: EmbeddedFile, b: EmbeddedFile, cosine: float, embedding: FileVectors) -> NearPair:
    cosine = min(1.0, cosine)
    return NearPair(
        a=a.file.name, b=b.file.name, cosine=cosine, unrelated=embedding.unrelated_share(cosine),
        evidence=embedding.evidence(a, b),
    )  # fmt: skip
