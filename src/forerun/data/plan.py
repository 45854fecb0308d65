"""Which batch shapes an epoch consists of: the one thing about data that time and memory depend on.

A `BatchPlan` counts micro-batches by shape. Recipes make it from the sampler that training uses; generic workloads from
the settings alone (`plan_from_settings`). No torch.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class BatchShape:
    """One micro-batch: samples and padded tokens per sample."""

    size: int
    length: int


@dataclass(frozen=True)
class BatchPlan:
    """Micro-batches of one epoch by shape, the number of optimizer steps that they make, and the real tokens."""

    shapes: tuple[tuple[BatchShape, int], ...]
    steps: int
    samples: int
    tokens: float
    """Non-padding tokens of the epoch."""
    assumptions: tuple[str, ...] = ()

    @classmethod
    def count(
        cls, shapes: Iterable[BatchShape], *, steps: int, samples: int, tokens: float, assumptions: tuple[str, ...] = ()
    ) -> "BatchPlan":
        """A plan from every micro-batch of an epoch."""
        return cls(tuple(sorted(Counter(shapes).items())), steps, samples, tokens, assumptions)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of the epoch."""
        return sum(number for _, number in self.shapes)

    @property
    def longest(self) -> BatchShape:
        """The shape with the most padded tokens, then the longest: memory peaks there."""
        return max((shape for shape, _ in self.shapes), key=lambda s: (s.size * s.length, s.length))

    @property
    def padded_tokens(self) -> int:
        """Padded tokens of the epoch."""
        return sum(shape.size * shape.length * number for shape, number in self.shapes)
