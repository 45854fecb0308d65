"""How long a run is and how the learning rate moves, counted in optimizer updates."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from forerun.settings.schema import ScheduleSettings


@dataclass(frozen=True)
class Schedule:
    """A run of `total_steps` optimizer steps over epochs of `steps_per_epoch`; `step` counts from 0."""

    settings: ScheduleSettings
    steps_per_epoch: int

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        steps = math.ceil(self.settings.epochs * self.steps_per_epoch)
        return steps if self.settings.max_steps is None else min(steps, self.settings.max_steps)

    @property
    def frozen_steps(self) -> int:
        """Steps at the start in which the encoder is frozen."""
        return min(self.total_steps, math.ceil(self.settings.frozen_encoder_epochs * self.steps_per_epoch))

    def factor(self, step: int) -> float:
        """Share of the peak learning rate for the update number `step`; the first is above 0, the last above 0 too."""
        warmup = min(self.settings.warmup_steps, self.total_steps)
        if step < warmup:
            return (step + 1) / warmup
        if self.settings.decay == "constant":
            return 1.0
        remaining = (self.total_steps - step) / max(1, self.total_steps - warmup)
        if self.settings.decay == "linear":
            return remaining
        return 0.5 * (1 + math.cos(math.pi * (1 - remaining)))

    def evaluates_after(self, step: int, every_epochs: float) -> bool:
        """Whether an evaluation is due once `step` is done."""
        passed = (step + 1) / self.steps_per_epoch
        before = step / self.steps_per_epoch
        return math.floor(passed / every_epochs + 1e-9) > math.floor(before / every_epochs + 1e-9)

    def positions(self, start: int) -> Iterator[tuple[int, int, int]]:
        """(step, epoch, index within the epoch) from step `start` to the end."""
        for step in range(start, self.total_steps):
            yield step, step // self.steps_per_epoch, step % self.steps_per_epoch

    def heaviest_steps(self, weights_of: Callable[[int], Sequence[int]]) -> set[int]:
        """Steps among which is the one that holds the most memory; `weights_of` gives the weights of an epoch's steps.

        The first with the largest weight once all is trained and the optimizer has its state; and the step before
        which it has none, where that weighs more. One epoch is looked at, and the next where the first is not enough.
        """
        first = self.frozen_steps if self.frozen_steps < self.total_steps else 0
        epoch = first // self.steps_per_epoch
        weights = self._weights(weights_of, epoch, first)
        if first % self.steps_per_epoch or weights[first] > max((weights[n] for n in weights if n > first), default=-1):
            weights |= self._weights(weights_of, epoch + 1, first)
        later = [number for number in weights if number > first]
        heaviest = max(later, key=lambda number: (weights[number], -number), default=first)
        return {heaviest, first} if weights[first] > weights[heaviest] else {heaviest}

    def _weights(self, weights_of: Callable[[int], Sequence[int]], epoch: int, first: int) -> dict[int, int]:
        """Weight of each step of an epoch that the run takes, from step `first` on."""
        begin = epoch * self.steps_per_epoch
        if begin >= self.total_steps:
            return {}
        numbered = enumerate(weights_of(epoch), start=begin)
        return {number: weight for number, weight in numbered if first <= number < self.total_steps}
