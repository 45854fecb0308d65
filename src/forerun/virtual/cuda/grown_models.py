"""Branches behind which more or less is trained than before: a scene gets more Gaussians, a network grows.

Seen by what the program's optimizers update: one that is there before and after, or one that the branch makes.
"""

from dataclasses import dataclass, field

import torch

from forerun.step.parallel import local
from forerun.virtual.live_objects import live_objects

LEAST_SHARE = 0.01
"""By which what is trained changes at least."""


@dataclass
class GrownModels:
    """What each branch of turns changes of that which is trained, looked at once."""

    by_line: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Elements that are updated before and behind a branch, where they differ."""
    _looked_at: set[str] = field(default_factory=set)
    _before: dict[int, int] = field(default_factory=dict)
    """Elements of each live optimizer, by its identity."""
    _line: str = ""

    def begin(self, line: str) -> None:
        """A branch begins."""
        if line not in self._looked_at:
            self._looked_at.add(line)
            self._line, self._before = line, _elements()

    def end(self, line: str) -> None:
        """A branch is over."""
        if line != self._line:
            return
        self._line, before, after = "", self._before, _elements()
        changes = [(before[each], after[each]) for each in before.keys() & after.keys() if before[each] != after[each]]
        fresh = [count for each, count in after.items() if each not in before]
        if len(fresh) == len(before) == 1:
            changes.append((next(iter(before.values())), fresh[0]))
        for first, then in changes:
            if abs(then - first) > LEAST_SHARE * first:
                self.by_line[line] = first, then


def _elements() -> dict[int, int]:
    def count(optimizer: torch.optim.Optimizer) -> int:
        return sum(local(each).numel() for group in optimizer.param_groups for each in group["params"])

    return {id(each): count(each) for each in live_objects(torch.optim.Optimizer) if hasattr(each, "param_groups")}
