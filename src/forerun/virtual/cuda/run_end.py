"""What a program does behind its last training loop, a last evaluation or saving, which is run once.

It goes as far as it stays in this process and on this machine: a forecast must not publish weights that nothing has
trained, nor shut down the machine as scripts on rented ones do at their end.
"""

import contextlib
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import forerun

MOST_SECONDS = 15.0
"""Of the clock; it may wait for a person, or for visitors."""
CHECK_SECONDS = 0.1
STARTS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"}
CONNECTS = {"socket.connect", "socket.sendto"}
"""Audit events (Python's documentation, audit events table, 3.11)."""
LOOPBACK = ("127.", "localhost", "::1")
OURS = os.path.dirname(forerun.__file__)


@dataclass
class RunEnd:
    """The end of a program that is running."""

    line: str = ""
    """File and line of the last loop; empty: it is not behind it."""
    ended_by: str = ""
    """What it did that is not done here; empty: nothing."""
    stopped: type[BaseException] = KeyboardInterrupt
    """What ends the program."""

    def stop(self, reason: str) -> None:
        """End the program; a thread beside it is refused alone, as without rights or a network.

        Raises:
            PermissionError: in such a thread.
        """
        if threading.current_thread() is not threading.main_thread():
            raise PermissionError(f"What follows the last loop {reason}: a forecast does not.")
        self.ended_by = self.ended_by or reason
        raise self.stopped


_running: list[RunEnd] = []
_is_auditing: list[bool] = []


@contextlib.contextmanager
def bounded(end: RunEnd) -> Iterator[None]:
    """What the program does meanwhile ends at another process, another machine, or when it takes too long.

    Raises:
        ValueError: this is not the main thread, which alone can be interrupted.
    """
    before, is_over, main = signal.getsignal(signal.SIGUSR2), threading.Event(), threading.main_thread()
    limit = time.monotonic() + MOST_SECONDS

    def interrupt(_: int, frame: Any) -> None:
        is_inside = frame is not None and frame.f_code.co_filename.startswith(OURS)  # of what the trace is written by
        if not is_over.is_set() and (not is_inside or time.monotonic() > limit + MOST_SECONDS):
            is_over.set()
            end.stop(f"takes more than {MOST_SECONDS:.0f} s here")

    def watch() -> None:
        is_over.wait(MOST_SECONDS)
        while not is_over.is_set() and main.ident is not None:
            signal.pthread_kill(main.ident, signal.SIGUSR2)
            is_over.wait(CHECK_SECONDS)

    signal.signal(signal.SIGUSR2, interrupt)
    if not _is_auditing:
        sys.addaudithook(_audit)  # for the life of the process
        _is_auditing.append(True)
    _running.append(end)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()  # no signal of it comes later, which would end the process
        _running.remove(end)
        signal.signal(signal.SIGUSR2, before if before is not None else signal.SIG_DFL)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _running:
        return
    if event in STARTS:
        _running[-1].stop("starts another process")
    if event in CONNECTS and _is_elsewhere(*args[:2]):
        _running[-1].stop("connects to another machine")


def _is_elsewhere(own: socket.socket, address: Any) -> bool:
    is_network = own.family in (socket.AF_INET, socket.AF_INET6)
    return is_network and isinstance(address, tuple) and not str(address[0]).startswith(LOOPBACK)


def result_of(stop: BaseException) -> Any:
    """What the call that was ended by an exception would have returned: a Trainer's summary, without figures."""
    trace, trainer = stop.__traceback__, getattr(sys.modules.get("transformers.trainer"), "Trainer", ())
    while trace is not None:
        owner: Any = trace.tb_frame.f_locals.get("self")
        if isinstance(owner, trainer):
            speeds = ("train_samples_per_second", "train_steps_per_second", "train_loss")
            metrics = {"train_runtime": 0.0, "total_flos": 0.0} | dict.fromkeys(speeds, math.nan)
            return sys.modules["transformers.trainer_utils"].TrainOutput(owner.state.global_step, math.nan, metrics)
        trace = trace.tb_next
    return None
