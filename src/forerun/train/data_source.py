"""What training needs of data: the order of an epoch, a pure function of the epoch, and batches from indices."""

from collections.abc import Sequence
from typing import Protocol

from forerun.step.workload import Batch


class TrainingData(Protocol):
    """Data of one run. The order must not depend on anything but its settings and the epoch: resuming relies on it."""

    def epoch_steps(self, epoch: int) -> Sequence[Sequence[Sequence[int]]]:
        """Optimizer steps of an epoch (from 0), each its micro-batches, each the indices of its samples."""
        ...

    def collate(self, indices: Sequence[int]) -> Batch:
        """CPU tensors of one micro-batch."""
        ...

    def tokens(self, indices: Sequence[int]) -> tuple[int, int]:
        """Tokens of one micro-batch without padding, and with it; quick, without making the batch."""
        ...
