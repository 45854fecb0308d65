"""Stopping on request: Ctrl-C or SIGTERM asks for a stop after the current step; a second Ctrl-C stops at once."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType


class Interrupted(Exception):
    """The run was stopped on request and can be resumed; carries the last step and its checkpoint."""

    def __init__(self, step: int, checkpoint: Path):
        super().__init__(f"Stopped after step {step}; the checkpoint is {checkpoint}.")
        self.step = step
        self.checkpoint = checkpoint


class StopRequest:
    """Whether somebody asked to stop."""

    def __init__(self) -> None:
        self.is_set = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """A signal arrived."""
        if self.is_set and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.is_set = True


@contextlib.contextmanager
def listening() -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM while active; outside the main thread nothing is caught."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
