"""Several documents in one row: which samples share a row, and the rows of a micro-batch.

First-fit decreasing inside windows: the samples of an epoch are shuffled, windows of about `WINDOW` micro-batches are
sorted by length, and each sample goes into the first row that has room (Johnson 1973; it needs at most 11/9 of the
fewest rows). What is left of a window moves on to the next, so that all micro-batches but the last have
`micro_batch_size` rows. Every sample occurs exactly once an epoch, and the order is a pure function of the seed and the
epoch.

A micro-batch is a flat array of sample indices. `rows_of` gives its rows back: a sample begins a new row exactly when
it does not fit into the current one. First fit guarantees that this is the same cut, because the sample that opened a
row fitted into none before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from forerun.data.plan import BatchShape
from forerun.data.sampler import EpochSampler, Indices

WINDOW = 16
"""Micro-batches packed together: larger wastes less and mixes less."""


def first_fit(order: Sequence[int] | Indices, lengths: Sequence[int] | Indices, row_length: int) -> list[list[int]]:
    """Rows of at most `row_length` tokens; each sample of `order` goes into the first that has room."""
    rows: list[list[int]] = []
    room = np.zeros(len(order) + 1, dtype=np.int64)
    for index in order:
        length = int(lengths[index])
        fits = np.flatnonzero(room[: len(rows)] >= length)
        if len(fits):
            row = int(fits[0])
        else:
            row = len(rows)
            rows.append([])
            room[row] = row_length
        rows[row].append(int(index))
        room[row] -= length
    return rows


def rows_of(indices: Sequence[int] | Indices, lengths: Sequence[int] | Indices, row_length: int) -> list[list[int]]:
    """The rows of a micro-batch: a sample that does not fit into the current row begins the next."""
    rows: list[list[int]] = []
    room = -1
    for index in indices:
        if lengths[index] > room:
            rows.append([])
            room = row_length
        rows[-1].append(int(index))
        room -= lengths[index]
    return rows


@dataclass(frozen=True, kw_only=True)
class PackedSampler(EpochSampler):
    """Rows of `sequence_length` tokens, each of several samples."""

    def __post_init__(self) -> None:
        longest = int(np.max(self.lengths, initial=0))
        if not 0 < longest <= self.sequence_length:
            raise ValueError(
                f"samples have 1 to sequence_length={self.sequence_length} tokens; found {len(self.lengths)} samples, "
                f"the longest of {longest}"
            )

    def shape(self, batch: Sequence[int] | Indices) -> BatchShape:
        """Rows and tokens of a row of a micro-batch."""
        return BatchShape(len(rows_of(batch, self.lengths, self.sequence_length)), self.sequence_length)

    def _micro_batches(self, random: np.random.Generator) -> list[Indices]:
        lengths = np.asarray(self.lengths)
        order = random.permutation(len(lengths))
        tokens = WINDOW * self.micro_batch_size * self.sequence_length
        window = (np.cumsum(lengths[order]) - 1) // tokens
        edges = np.searchsorted(window, np.arange(int(window[-1]) + 2))
        batches: list[Indices] = []
        left: list[int] = []
        for first, end in pairwise(edges):
            samples = np.concatenate([np.asarray(left, dtype=np.int64), order[first:end]])
            decreasing = samples[np.argsort(-lengths[samples], kind="stable")]
            rows = first_fit(decreasing, lengths, self.sequence_length)
            full = len(rows) - len(rows) % self.micro_batch_size
            width = self.micro_batch_size
            batches += [_flat(rows[first : first + width]) for first in range(0, full, width)]
            left = [index for row in rows[full:] for index in row]
        # the incomplete micro-batch stays last: only an epoch's last step may have fewer rows
        batches = [batches[position] for position in random.permutation(len(batches))]
        return [*batches, np.asarray(left, dtype=np.int64)] if left else batches


def _flat(rows: Sequence[Sequence[int]]) -> Indices:
    return np.asarray([index for row in rows for index in row], dtype=np.int64)
