"""What a program does behind its last training loop, a last evaluation or saving, which is run once.

It goes as far as it stays in this process and on this machine: a forecast must not publish weights that nothing has
trained, nor shut down the machine as scripts on rented ones do at their end.
"""

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import util
from typing import Any

import forerun
from forerun.virtual.put_back import replaced_everywhere

MOST_SECONDS = 15.0
"""Of the clock; it may wait for a person, or for visitors."""
CHECK_SECONDS = 0.1
STARTS = (
    (os, "system"), (os, "fork"), (os, "forkpty"), (os, "posix_spawn"), (os, "posix_spawnp"), (os, "execv"),
    (os, "execve"), (subprocess.Popen, "__init__"), (util, "spawnv_passfds"),
)  # fmt: skip
"""What every other way of starting a program comes down to in Python's library."""
CONNECTS = ("connect", "connect_ex", "sendto")
"""Methods of a socket that are given an address, as their last argument."""
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
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        with replaced_everywhere(_guards(end)):
            yield
    finally:
        is_over.set()
        watcher.join()  # no signal of it comes later, which would end the process
        signal.signal(signal.SIGUSR2, before if before is not None else signal.SIG_DFL)


def _guards(end: RunEnd) -> list[tuple[Any, str, Any]]:
    """Functions that end the program, each as owner, name and value."""

    def starting(*_: Any, **__: Any) -> None:
        end.stop("starts another process")

    def connecting(original: Any) -> Any:
        def call(own: socket.socket, *args: Any) -> Any:
            if _is_elsewhere(own, args[-1]):
                end.stop("connects to another machine")
            return original(own, *args)

        return call

    connects = [(socket.socket, name, connecting(getattr(socket.socket, name))) for name in CONNECTS]
    return [*((owner, name, starting) for owner, name in STARTS), *connects]


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
