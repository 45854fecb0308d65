"""Training data of several texts a sample: pairs, triplets, two answers to one prompt; padded to one length.

The keys of a side's tensors have its prefix: `input_ids` and `other_input_ids`, for example. A side has labels where
its samples have. What else a sample brings, one number each, goes along under its own name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from forerun.data.token_data import IGNORED, Batch, SampleOrder, TokenSample, id_lengths, padded


@dataclass(frozen=True)
class SidedData(SampleOrder):
    """`TrainingData` over sides of equally many samples; the order is a pure function of settings and epoch."""

    sides: Mapping[str, Sequence[TokenSample]]
    """Samples of each side, by the prefix of its keys."""
    padding_id: int
    with_masks: bool = True
    """Whether batches have padding masks."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """A number for each sample, by its key."""

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of the longest side of each sample, after cutting."""
        sides = [id_lengths(samples) for samples in self.sides.values()]
        if len({len(side) for side in sides}) > 1:
            raise ValueError(f"sides have equally many samples; found {[len(side) for side in sides]}")
        return np.minimum(np.max(sides, axis=0), self.settings.batch.sequence_length)

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
