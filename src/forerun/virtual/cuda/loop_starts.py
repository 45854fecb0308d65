"""Where a training loop begins anew within the steps that are seen: a few turns on each batch of rollouts, say.

A step then has what the program did behind the loop's last turn before its own work. That is no part of the step but a
rest, which is seen once more when the loop is ended (`loop_rests.py`). A loop that begins in every step, such as one
over micro-batches, is a part of it, and so is one behind a backward pass of the same step.
"""

from dataclasses import dataclass, field, replace

from forerun.virtual.cuda.hand_updates import Progress


@dataclass(frozen=True)
class LoopStart:
    """The beginning of a loop within a step."""

    line: str
    progress: Progress
    """How far the step had come."""
    saved_bytes: int
    """What the program had saved."""
    is_only: bool = True
    """No loop around it began in the same step."""

    def rest_of(self, progress: Progress) -> Progress:
        """How far the step had come later, counted from here on."""
        calls, fetched = progress.calls_since(self.progress), progress.fetched - self.progress.fetched
        return replace(progress, calls=calls, fetched=fetched)


@dataclass
class LoopStarts:
    """The beginnings of the training loops of a program, step by step."""

    last_pass: int = 0
    """Event of the trace at which the last backward pass began."""
    first_event: int | None = None
    """Event at which the first of them began, the outermost around the first step; None: none was marked."""
    _begun: list[tuple[str, LoopStart | None]] = field(default_factory=list)
    """Lines of those that began since the last step; None: within its passes."""
    _in_each: set[str] | None = None
    """Lines of those that began in every step so far."""

    def note(self, line: str, progress: Progress, saved_bytes: int, turn_begin: int) -> None:
        """The loop at a line begins; the turn of the step that is made began at an event."""
        if self.first_event is None:
            self.first_event = progress.events
        is_before = self.last_pass <= turn_begin
        self._begun.append((line, LoopStart(line, progress, saved_bytes) if is_before else None))

    def take(self, end: int) -> LoopStart | None:
        """Where the own work of a step that ends at an event began; None: at its first event."""
        begun = {line: start for line, start in self._begun if start is None or start.progress.events < end}
        self._begun = [(line, start) for line, start in self._begun if line not in begun]
        is_first, each = self._in_each is None, self._in_each or set()
        self._in_each = set(begun) if is_first else each & begun.keys()
        starts = [start for line, start in begun.items() if start is not None and line not in self._in_each]
        if is_first or not starts:
            return None
        last = max(starts, key=lambda start: start.progress.events)
        return LoopStart(last.line, last.progress, last.saved_bytes, len(starts) == 1)
