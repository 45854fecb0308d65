"""Windows of a stream of tokens: as long as the context, side by side, every token predicted once an epoch.

The first token of a window is predicted from one token of context, the last from all: scores say the window's length.
Training drops the last, shorter window; scoring pads it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from forerun.data.plan import BatchPlan, BatchShape
from forerun.data.token_data import IGNORED, Batch
from forerun.settings.schema import Settings

Windows = NDArray[np.int32]
USEFUL_PASSES = 4.0
"""Passes over the same tokens that are worth nearly as much as new ones (Muennighoff et al. 2023, arXiv 2305.16264)."""


def windows(stream: NDArray[np.int32], length: int) -> Windows:
    """Rows of `length` + 1 tokens that overlap by one; what does not fill a row is left out."""
    rows = (len(stream) - 1) // length
    places = np.arange(length + 1) + length * np.arange(rows)[:, None]
    return stream[places]


def held_out_batches(stream_or_rows: NDArray[np.int32], length: int, size: int) -> Iterator[Batch]:
    """Batches of a stream, or of rows of `length` + 1, for scoring; every target once, the last window padded."""
    if stream_or_rows.ndim == 1:
        missing = -(len(stream_or_rows) - 1) % length
        rows = windows(np.append(stream_or_rows, np.full(missing, IGNORED, dtype=np.int32)), length)
    else:
        rows = stream_or_rows
    for first in range(0, len(rows), size):
        yield as_batch(rows[first : first + size])


def as_batch(rows: Windows) -> Batch:
    """Ids and the labels one further, each (B, T); where labels are padding ids are 0."""
    whole = torch.from_numpy(rows.astype(np.int64))
    return {"input_ids": whole[:, :-1].clamp(min=0), "labels": whole[:, 1:]}


@dataclass(frozen=True)
class WindowData:
    """`TrainingData` over windows; the order is a pure function of settings and epoch."""

    settings: Settings
    rows: Windows
    _orders: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def epoch_steps(self, epoch: int) -> Sequence[Sequence[Sequence[int]]]:
        """Optimizer steps of an epoch, each its micro-batches, each the numbers of its windows."""
        if epoch not in self._orders:
            self._orders.clear()
            order = np.random.default_rng((self.settings.seed, epoch)).permutation(len(self.rows))
            size, micro = self.settings.batch.micro_batch_size, self.settings.micro_batches_per_step
            batches = [order[first : first + size] for first in range(0, len(order), size)]
            self._orders[epoch] = [batches[first : first + micro] for first in range(0, len(batches), micro)]
        return self._orders[epoch]

    def collate(self, indices: Sequence[int]) -> Batch:
        """Tensors of one micro-batch, on the host."""
        return as_batch(self.rows[np.asarray(indices)])

    def tokens(self, indices: Sequence[int]) -> tuple[int, int]:
        """Tokens of one micro-batch; none is padding."""
        count = len(indices) * (self.rows.shape[1] - 1)
        return count, count

    def plan(self) -> BatchPlan:
        """Shapes of any epoch."""
        return plan_of_windows(self.settings, len(self.rows))


def plan_of_windows(settings: Settings, count: int, assumptions: tuple[str, ...] = ()) -> BatchPlan:
    """The plan of `count` windows of `batch.sequence_length` tokens."""
    size, length = settings.batch.micro_batch_size, settings.batch.sequence_length
    full, rest = divmod(count, size)
    shapes = [(BatchShape(size, length), full)] if full else []
    shapes += [(BatchShape(rest, length), 1)] if rest else []
    steps = settings.steps_per_epoch(count)
    passes = settings.total_steps(count) / steps
    if passes > USEFUL_PASSES:
        warning = f"{passes:.1f} passes over the same {count * length:,} tokens; beyond {USEFUL_PASSES:.0f} a run "
        assumptions = (*assumptions, warning + "learns them by heart: watch the validation loss.")
    return BatchPlan(tuple(sorted(shapes)), steps, count, float(count * length), assumptions)
