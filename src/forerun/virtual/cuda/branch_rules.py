"""How often a branch is due, by the remainder that decides it and what its condition says beside that.

`if step > 100 and step % 50 == 0 and args.save:` is due where the remainder is 0, not before step 101, and never where
the option is off.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

MOST_ASKED = 10_000
"""Turns whose number a condition is asked about."""

Reading = tuple[int, int, int]
"""A counter, its period, and the optimizer steps so far."""


class EventSpan(Protocol):
    """Events of the trace, such as those of a step, from `begin` to `end`."""

    @property
    def begin(self) -> int:
        """Its first event."""
        ...

    @property
    def end(self) -> int:
        """The event behind its last one."""
        ...


def _always(*_: int) -> bool:
    return True


@dataclass
class BranchRule:
    """What decides one branch."""

    residue: int = 0
    """What its remainder is when it is due."""
    is_past: Callable[[int], Any] = _always
    """What the condition says of a counter beside the remainder: `step > 100`."""
    refused: set[int] = field(default_factory=set)
    """Counters with which it was not taken though its remainder said so."""

    def is_of_period(self, reading: Reading) -> bool:
        """Whether the remainder is that with which the branch is due."""
        counter, period, _ = reading
        return (counter - self.residue) % period == 0

    def count(self, readings: Sequence[Reading], rise: float) -> int:
        """How often it is due while its counter rises by so much, from the first reading on."""
        first, period, _ = readings[0]
        each = min((now[0] - before[0] for before, now in pairwise(readings) if now[0] > before[0]), default=1)
        before = first - each
        begin, end = ((at - self.residue) // period for at in (before, before + math.floor(rise + 1e-6)))
        due = range((begin + 1) * period + self.residue, (end + 1) * period + self.residue, period)
        if len(due) > MOST_ASKED:
            return len(due) - len(self.refused)
        return sum(counter not in self.refused and self._is_past(counter) for counter in due)

    def _is_past(self, counter: int) -> bool:
        try:
            return bool(self.is_past(counter))
        except (NameError, AttributeError, TypeError, LookupError):
            return True


def steps_between(readings: Sequence[Reading]) -> int:
    """Optimizer steps from one turn of a branch to the next, by how its counter rose; 0 where that is not known."""
    (first, period, before), (last, _, now) = readings[0], readings[-1]
    return round(period * (now - before) / (last - first)) if last > first else 0


def is_off(is_on: Callable[[], Any]) -> bool:
    """Whether options say no; what fails, such as `args.save.every` without `args.save`, says nothing."""
    try:
        return not is_on()
    except (NameError, AttributeError, TypeError, LookupError):
        return False
