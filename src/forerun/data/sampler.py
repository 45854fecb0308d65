"""Which samples make which micro-batch: bucketed by length, with members of one group together, the same for a seed.

An epoch is a list of optimizer steps, a step a list of micro-batches, a micro-batch an array of sample indices. Every
sample occurs exactly once an epoch. All micro-batches are full but one; the last step may have fewer micro-batches.

Method: samples of one group are cut into clusters of at most `members` (a contrastive loss needs two of a group in a
batch; P×K batches with K = `members`); clusters are shuffled, windows of `WINDOW` micro-batches are sorted by length
and cut; the micro-batches are shuffled. Short files therefore meet short files, but not the same ones every epoch.

The forecast's batch plan and the training loop come from the same `epoch`, so their shapes are equal by construction.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from forerun.data.plan import BatchPlan, BatchShape

WINDOW = 32
"""Micro-batches sorted together: larger wastes less padding and mixes less."""
LENGTH_MULTIPLE, COMPILED_MULTIPLE = 8, 64
"""Padded lengths are multiples of this: what tensor cores like, or where steps are compiled few enough shapes."""
LOOK_AHEAD = 8
"""Clusters that may wait for the next micro-batch before one is torn to fill this one."""

Indices = NDArray[np.int64]


def padded_length(length: int, sequence_length: int, multiple: int = LENGTH_MULTIPLE) -> int:
    """`length` rounded up to a multiple of `multiple`, at most `sequence_length`; tokens."""
    return min(sequence_length, -(-length // multiple) * multiple)


@dataclass(frozen=True, kw_only=True)
class EpochSampler(ABC):
    """Order of the samples, epoch by epoch; a pure function of its fields and the epoch."""

    lengths: Sequence[int] | NDArray[np.int64]
    """Tokens of each sample, at most `sequence_length`."""
    micro_batch_size: int
    """Rows of a micro-batch."""
    gradient_accumulation_steps: int = 1
    sequence_length: int
    seed: int = 0

    def epoch(self, epoch: int) -> list[list[Indices]]:
        """Optimizer steps of the epoch (counted from 0), each a list of micro-batches."""
        batches = self._micro_batches(np.random.default_rng((self.seed, epoch)))
        width = self.gradient_accumulation_steps
        return [batches[first : first + width] for first in range(0, len(batches), width)]

    def plan(self, epoch: int = 0, most_steps: int | None = None) -> BatchPlan:
        """The shapes of that epoch; other epochs differ only by chance.

        A run that ends after `most_steps`, within the epoch, meets no longer or heavier batch than those steps have.
        """
        steps = self.epoch(epoch)
        shapes = [[self.shape(batch) for batch in step] for step in steps]
        lengths = np.asarray(self.lengths)
        if most_steps is not None and most_steps < len(steps):
            own = [shape for step in shapes[:most_steps] for shape in step]
            longest = max((shape.length for shape in own), default=1)
            most = max((shape.size * shape.length for shape in own), default=1)
            shapes = [
                [BatchShape(shape.size, min(shape.length, longest, max(1, most // shape.size))) for shape in step]
                for step in shapes
            ]
            lengths = np.minimum(lengths, longest)
        every = [shape for step in shapes for shape in step]
        tokens = min(int(np.sum(lengths)), sum(shape.size * shape.length for shape in every))
        return BatchPlan.count(every, steps=len(steps), samples=len(lengths), tokens=float(tokens))

    @abstractmethod
    def shape(self, batch: Sequence[int] | Indices) -> BatchShape:
        """Rows and padded tokens of a row of a micro-batch."""

    @abstractmethod
    def _micro_batches(self, random: np.random.Generator) -> list[Indices]:
        """All micro-batches of an epoch; only the last may have fewer rows than the others."""


@dataclass(frozen=True, kw_only=True)
class LengthBucketSampler(EpochSampler):
    """Samples of like lengths together, and members of one group."""

    groups: Sequence[str] | None = None
    """Group of each sample; None where every sample is alone."""
    padding: Literal["fixed", "longest", "bucketed"] = "bucketed"
    """`longest` pads like `bucketed` but does not sort by length."""
    length_multiple: int = LENGTH_MULTIPLE
    members: int = 4
    """Most samples of one group that stay together."""

    def __post_init__(self) -> None:
        groups = len(self.lengths) if self.groups is None else len(self.groups)
        if len(self.lengths) != groups or not groups:
            raise ValueError(f"one length and group a sample; found {len(self.lengths)} and {groups}")

    def shape(self, batch: Sequence[int] | Indices) -> BatchShape:
        """Samples and padded tokens of a micro-batch."""
        longest = int(self._lengths[np.asarray(batch)].max())
        return BatchShape(len(batch), self.padded(longest))

    def padded(self, longest: int) -> int:
        """Tokens to which a micro-batch is padded whose longest sample has `longest`."""
        fixed = self.padding == "fixed"
        return self.sequence_length if fixed else padded_length(longest, self.sequence_length, self.length_multiple)

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        return np.asarray(self.lengths, dtype=np.int64)

    def _micro_batches(self, random: np.random.Generator) -> list[Indices]:
        if self.groups is None or len(set(self.groups)) == len(self.groups):
            batches = self._lone_samples(random)
            return [batches[position] for position in random.permutation(len(batches))]
        clusters = self._clusters(random)
        clusters = [clusters[position] for position in random.permutation(len(clusters))]
        if self.padding == "bucketed":
            clusters = self._sort_windows(clusters)
        batches = list(self._pack(deque(clusters)))
        return [batches[position] for position in random.permutation(len(batches))]

    def _lone_samples(self, random: np.random.Generator) -> list[Indices]:
        """Micro-batches of clusters of one sample each, without an object for each: as `_pack` would make them."""
        order = random.permutation(len(self._lengths))
        if self.padding == "bucketed":
            window = np.arange(len(order)) // (WINDOW * self.micro_batch_size)
            longest = self._lengths[order]
            order = order[np.lexsort((np.where(window % 2, -longest, longest), window))]
        return [order[first : first + self.micro_batch_size] for first in range(0, len(order), self.micro_batch_size)]

    def _clusters(self, random: np.random.Generator) -> list[Indices]:
        by_group: dict[str, list[int]] = {}
        for index, group in enumerate(self.groups or ()):
            by_group.setdefault(group, []).append(index)
        most = min(self.members, self.micro_batch_size)
        return [
            cluster
            for indices in by_group.values()
            for cluster in np.array_split(random.permutation(np.asarray(indices)), -(-len(indices) // most))
        ]

    def _sort_windows(self, clusters: list[Indices]) -> list[Indices]:
        """Sorted by length window by window, up and down in turn so that neighbours stay alike across a boundary."""
        samples = np.cumsum([len(cluster) for cluster in clusters])
        window = (samples - 1) // (WINDOW * self.micro_batch_size)
        longest = np.asarray([max(self.lengths[index] for index in cluster) for cluster in clusters])
        order = np.lexsort((np.where(window % 2, -longest, longest), window))
        return [clusters[position] for position in order]

    def _pack(self, queue: deque[Indices]) -> Iterator[Indices]:
        """Full micro-batches, all but the last; a cluster that does not fit waits, and is torn when too many wait."""
        while queue:
            batch: list[int] = []
            waiting: list[Indices] = []
            while queue and len(batch) < self.micro_batch_size and len(waiting) < LOOK_AHEAD:
                cluster = queue.popleft()
                if len(cluster) <= self.micro_batch_size - len(batch):
                    batch.extend(cluster.tolist())
                else:
                    waiting.append(cluster)
            room = self.micro_batch_size - len(batch)
            if room and waiting:
                batch.extend(waiting[0][:room].tolist())
                waiting[0] = waiting[0][room:]
            queue.extendleft(reversed(waiting))
            yield np.asarray(batch, dtype=np.int64)
