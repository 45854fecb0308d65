"""What was seen of a program's training: its optimizer steps and its training loops."""

from dataclasses import dataclass, field

from forerun.virtual.cuda.length import ProgramLength
from forerun.virtual.cuda.loaders import WatchedLoader
from forerun.virtual.cuda.loop_rests import LoopRest

SAME_WORK = 1e-3
"""Relative difference of work between steps that are alike."""


@dataclass(frozen=True)
class StepSpan:
    """One optimizer step: the events of the trace from `begin` to `end`."""

    begin: int
    end: int
    work: tuple[int, int]
    """Arithmetic (FLOP) and bytes moved by its operators."""
    allocated_bytes: int
    """What the allocator has given out when it ends."""
    samples: int
    tokens: int
    fetched: tuple[WatchedLoader, ...] = ()
    """The data loader of each batch that was made in it."""
    backward_lines: tuple[str, ...] = ()
    """The line of the program of each of its backward passes whose gradients add up in its update."""

    def is_like(self, other: "StepSpan") -> bool:
        """Whether both do the same work: a step that logs reads a number more."""
        return all(abs(a - b) <= SAME_WORK * max(a, b) for a, b in zip(self.work, other.work, strict=True))


@dataclass(frozen=True)
class TrainingLoop:
    """A training loop of a program that is over, and after which another one came."""

    spans: list[StepSpan]
    warm_from: int
    length: ProgramLength | None
    line: str
    """File and line that stepped its optimizer last."""
    rests: list[LoopRest] = field(default_factory=list)
