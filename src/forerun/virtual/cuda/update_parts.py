"""Steps of optimizers that are none of the program: parts of an update, and those of a second optimizer.

One optimizer is stepped several times for one update: once for each group of parameters, as DeepSpeed does.

Its ZeRO stages give their optimizer one group after the other (`runtime/zero/stage_1_and_2.py`, `_optimizer_step`,
0.19). What follows a step without a pass between them is part of the same update. How many there are is known from the
second update on: the first one seems to be over after its first part, and what is left of it counts to the next step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forerun.virtual.cuda.records import StepSpan

MOST_OTHERS = 12
"""Steps of other optimizers in a row; then another loop trains."""


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


@dataclass
class OtherUpdates:
    """Steps of the optimizers beside the one that ends steps: a generator's, behind its discriminator's.

    A loop that is ended between both leaves what the second one's backward pass would have freed beside what the next
    turn makes.
    """

    count: int = 0
    """Since the step of the optimizer that ends steps."""
    is_awaited: bool = False
    """The loop is to be ended behind the last of them."""
    turn_begin: int = 0
    """Event of the trace behind the last of them: the loop's next turn begins there."""
    _usual: int = 0
    """In the last whole step."""

    def are_too_many(self) -> bool:
        """One more is stepped: whether they are so many that the loop of the one that ends steps is over."""
        self.count += 1
        return self.count > MOST_OTHERS

    def next_step(self) -> None:
        """The optimizer that ends steps is stepped again."""
        self._usual, self.count = self.count, 0

    def awaits(self) -> bool:
        """Whether to end the loop behind those that follow in a step; a loop without them in this turn ends at once."""
        self.is_awaited = self._usual > self.count and not self.is_awaited
        return self.is_awaited

    def end_turn(self, event: int) -> bool:
        """One of them was stepped, at an event of the trace; returns whether the loop is to be ended now."""
        self.turn_begin = event
        return self.is_awaited and self.count >= self._usual
