"""Whoever waits is told for what: after two seconds, whenever that changes, and every half minute.

One line each, on stderr, the same for a terminal and for a file: a spinner says nothing to who reads a log.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forerun.current_work import current_work

FIRST_SECONDS, AGAIN_SECONDS = 2.0, 30.0
"""Silence before the first line, and between lines on one and the same work."""
LOOK_SECONDS = 0.25


class WaitingLines:
    """Decides which line is due; `line` is asked with the seconds since the start."""

    def __init__(self) -> None:
        self._words, self._since, self._shown_at = "", 0.0, 0.0
        self._is_shown = False

    def line(self, words: str, now: float) -> str:
        """The line that is due at `now`, in seconds; empty for none."""
        if words != self._words:
            self._words, self._since, self._is_shown = words, now, False
        if not words or now < FIRST_SECONDS:
            return ""
        silence = now - (self._shown_at if self._is_shown else max(self._shown_at, self._since))
        if self._is_shown and silence < AGAIN_SECONDS or not self._is_shown and silence < FIRST_SECONDS:
            return ""
        again = f", {now - self._since:.0f} s so far" if self._is_shown else ""
        self._is_shown, self._shown_at = True, now
        return f"… {words}{again}"


@contextmanager
def shown_waiting(show: Callable[[str], None] | None = None) -> Iterator[None]:
    """Show what the program works on while the body runs; nothing where it is done within two seconds."""
    over, start, lines = threading.Event(), time.monotonic(), WaitingLines()
    show = show or _on_stderr

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            line = lines.line(current_work(), time.monotonic() - start)
            if line:
                show(line)

    thread = threading.Thread(target=look, name="waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
