"""Optimizers that are stepped several times for one update: once for each group of parameters, as DeepSpeed does.

Its ZeRO stages give their optimizer one group after the other (`runtime/zero/stage_1_and_2.py`, `_optimizer_step`,
0.19). What follows a step without a pass between them is part of the same update. How many there are is known from the
second update on: the first one seems to be over after its first part, and what is left of it counts to the next step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forerun.virtual.cuda.records import StepSpan


@dataclass
class UpdateParts:
    """How many steps of the optimizer make one update, as far as it was seen."""

    usual: int = 1
    _count: int = 0
    """Of the update that is being made."""
    _passes: tuple[int, int] = (0, 0)
    """Backward passes and calls of modules in the step so far, when the optimizer was stepped last."""

    def is_whole(
        self, spans: Sequence[StepSpan], backward_lines: Sequence[str], calls: Mapping[int, tuple[int, int, int]]
    ) -> bool:
        """Whether the step of the optimizer that was just made ends an update; a step ends with it.

        A program that never has backward passes updates as often as it steps.
        """
        passes = len(backward_lines), sum(count for count, _, _ in calls.values())
        is_rest = passes == self._passes and bool(spans and spans[-1].backward_lines)
        if not is_rest and self._passes != (0, 0):  # the last update had fewer parts
            self.usual = max(1, self._count)
        self._count = self._count + 1 if is_rest else 1
        is_whole = self._count == self.usual
        self.usual = max(self.usual, self._count)
        self._passes = (0, 0) if is_whole else passes
        return is_whole
