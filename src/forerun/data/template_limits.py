"""What a chat template may take: it is a program of whoever made the model, and Jinja's sandbox lets it run for ever.

Processor time is limited where the rendering thread is the main one, as signals reach no other; memory, on top of what
the process holds, while a template is tried for the first time. Both end as errors that a template may raise.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SECONDS = 10.0
"""Processor time of one rendering; a chat of 1,000 turns takes some 10 ms."""
MORE_BYTES = 2**30
"""Memory that a template may take while it is tried."""
STATM = Path("/proc/self/statm")


@contextlib.contextmanager
def limited_time(seconds: float = SECONDS) -> Iterator[None]:
    """Raise RuntimeError where what is inside takes more processor time; does nothing in threads and on Windows."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "ITIMER_VIRTUAL"):
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise RuntimeError(f"it did not end within {seconds:g} s of processor time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextlib.contextmanager
def limited_memory(more_bytes: int = MORE_BYTES) -> Iterator[None]:
    """Have allocations fail (MemoryError) beyond what the process has now and `more_bytes`, on Linux."""
    if sys.platform != "linux" or not STATM.exists():
        yield
        return
    import resource  # Windows has none

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = int(STATM.read_text().split()[0]) * resource.getpagesize() + more_bytes
    ends = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([most, *ends]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
