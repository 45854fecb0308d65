"""Further loops of the same optimizer in each turn of the loop around them: one set of rows after another in an epoch.

Steps are seen in the first of them. Once it is ended the program goes on, and the next step shows the loop that it is
in: by its line, or by who calls the function that has it. What the loops around that step say counts beside the first.

Not covered: the time of its steps, which is taken for that of those seen.
"""

import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

from forerun.virtual.cuda.later_loops import loops_of
from forerun.virtual.cuda.lines import is_library, program_line
from forerun.virtual.cuda.trainer_lengths import ProgramLength


@dataclass
class OtherLoops:
    """The loops in which the steps of one training loop were made."""

    uncounted: list[str] = field(default_factory=list)
    """Lines of the steps of those of which nobody says how often they run."""
    _places: set[Hashable] = field(default_factory=set)

    def note_step(self) -> None:
        """A step is made in the loop that is seen."""
        self._places.add(_place())

    def counted(
        self, length: ProgramLength | None, find: Callable[[], ProgramLength | None]
    ) -> ProgramLength | None:  # fmt: skip
        """The length with that of the loop which the step behind a rest is in, where it is another one.

        `find` says the length by the loops around that step.
        """
        place = _place()
        if length is None or not length.loops or not self._places or place in self._places:
            return length
        self._places.add(place)
        other = find()
        if other is None or not other.loops:
            self.uncounted.append(program_line())
            return length
        if other.loops[-1][0] != length.loops[-1][0] or not length.steps:
            return length
        share = (length.steps + other.steps) / length.steps
        epoch = None if length.steps_per_epoch is None else round(share * length.steps_per_epoch)
        source = f"{length.source} and those at {', '.join(line for line, _ in other.loops)}"
        return replace(length.scaled(share, length.loops[0][0]), steps_per_epoch=epoch, source=source)


def _place() -> Hashable:
    """The innermost loop of the program that is running, and where its functions were called from there up."""
    frame: Any = sys._getframe(2)
    place = list[tuple[str, int]]()
    while frame is not None:
        path = frame.f_code.co_filename
        if not is_library(path):
            if place:
                place.append((path, frame.f_lasti))
            elif around := [first for first, last in loops_of(frame) if first <= frame.f_lineno <= last]:
                place.append((path, max(around)))
        frame = frame.f_back
    return tuple(place)
