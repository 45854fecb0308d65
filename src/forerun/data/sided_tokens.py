"""Training data of several texts a sample: pairs, triplets, two answers to one prompt; padded to one length.

The keys of a side's tensors have its prefix: `input_ids` and `other_input_ids`, for example. A side has labels where
its samples have. What else a sample brings, one number each, goes along under its own name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from forerun.data.plan import BatchPlan
from forerun.data.token_data import IGNORED, Batch, TokenSample, padded, sampler_of
from forerun.settings.schema import Settings


@dataclass(frozen=True)
class SidedData:
    """`TrainingData` over sides of equally many samples; the order is a pure function of settings and epoch."""

    settings: Settings
    sides: Mapping[str, Sequence[TokenSample]]
    """Samples of each side, by the prefix of its keys."""
    padding_id: int
    with_masks: bool = True
    """Whether batches have padding masks."""
    numbers: dict[str, Sequence[float]] = field(default_factory=dict)
    """A number for each sample, by its key."""
    _orders: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of the longest side of each sample, after cutting."""
        limit = self.settings.batch.sequence_length
        rows = zip(*self.sides.values(), strict=True)
        return [min(limit, max(len(sample.ids) for sample in row)) for row in rows]

    @cached_property
    def sampler(self) -> Any:
        """Order of the samples, and which of them share a micro-batch."""
        return sampler_of(self.settings, self.lengths)

    def plan(self) -> BatchPlan:
        """Shapes of the first epoch."""
        return self.sampler.plan()

    def epoch_steps(self, epoch: int) -> Sequence[Sequence[Sequence[int]]]:
        """Optimizer steps of an epoch, each its micro-batches, each the indices of its samples."""
        if epoch not in self._orders:
            self._orders.clear()
            self._orders[epoch] = self.sampler.epoch(epoch)
        return self._orders[epoch]

    def tokens(self, indices: Sequence[int]) -> tuple[int, int]:
        """Tokens of the longest sides of one micro-batch without and with padding."""
        shape = self.sampler.shape(indices)
        return sum(self.lengths[index] for index in indices), shape.size * shape.length

    def collate(self, indices: Sequence[int]) -> Batch:
        """Tensors of one micro-batch, on the host."""
        length = self.sampler.shape(indices).length
        batch: Batch = {}
        for side, samples in self.sides.items():
            own = [samples[index] for index in indices]
            batch[f"{side}input_ids"] = padded([s.ids for s in own], length, self.padding_id)
            if self.with_masks:
                batch[f"{side}attention_mask"] = padded([[1] * min(len(s.ids), length) for s in own], length, 0)
            if own[0].target is not None:
                batch[f"{side}labels"] = padded([s.target for s in own], length, IGNORED)  # type: ignore[misc]
        for name, values in self.numbers.items():
            batch[name] = torch.tensor([values[index] for index in indices])
        return batch
