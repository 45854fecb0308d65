"""Whoever waits is told for what: after two seconds, whenever that changes, and every half minute.

Work that is quick, one after the other, is named too once nothing was said for five seconds; so are slow imports.

One line each, on stderr, the same for a terminal and for a file: a spinner says nothing to who reads a log.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forerun.current_work import current_place, current_work

FIRST_SECONDS, AGAIN_SECONDS = 2.0, 30.0
"""Silence before the first line, and between lines on one and the same work."""
QUIET_SECONDS = 5.0
"""Silence over several pieces of quick work after which the present one is named."""
LOOK_SECONDS = 0.25
SLOW_IMPORTS = {"torch": "loading PyTorch", "transformers": "loading transformers"}


class WaitingLines:
    """Decides which line is due; `line` is asked with the seconds since the start."""

    def __init__(self) -> None:
        self._words, self._since, self._shown_at = "", 0.0, 0.0
        self._is_shown = False

    def line(self, words: str, now: float, place: Callable[[], str] = str) -> str:
        """The line that is due at `now`, in seconds; empty for none. `place` says how far the work has come."""
        if words != self._words:
            self._words, self._since, self._is_shown = words, now, False
        if not words or now < FIRST_SECONDS:
            return ""
        silence = now - self._shown_at
        is_due = silence >= AGAIN_SECONDS
        if not self._is_shown:
            is_due = silence >= QUIET_SECONDS or min(silence, now - self._since) >= FIRST_SECONDS
        if not is_due:
            return ""
        again = ""
        if self._is_shown:
            words_of_place = place()
            again = f", {now - self._since:.0f} s so far{words_of_place and f': {words_of_place}'}"
        self._is_shown, self._shown_at = True, now
        return f"… {words}{again}"


@contextmanager
def shown_waiting(show: Callable[[str], None] | None = None) -> Iterator[None]:
    """Show what the program works on while the body runs; nothing where it is done within two seconds."""
    over, start, lines = threading.Event(), time.monotonic(), WaitingLines()
    show = show or _on_stderr

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            line = lines.line(current_work() or being_imported(), time.monotonic() - start, current_place)
            if line:
                show(line)

    thread = threading.Thread(target=look, name="waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def being_imported() -> str:
    """Words for the slow import that is under way; empty for none."""
    for name, words in SLOW_IMPORTS.items():
        # importlib marks the spec of a module whose body still runs (importlib._bootstrap._load_unlocked, 3.11)
        if getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
            return words
    return ""


def _on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
