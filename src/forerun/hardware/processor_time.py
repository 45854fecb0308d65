"""Who uses the processors of this machine: this process, others, or the hypervisor.

Linux counts processor time by kind in /proc/stat (proc(5)), and for each thread how long it was ready and waited for a
processor in schedstat (Documentation/scheduler/sched-stats.rst); elsewhere nothing is known.
"""

import contextlib
import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
THREADS = Path("/proc/self/task")
OWN_THREAD = Path("/proc/thread-self/schedstat")
NANO = 1e-9
CROWDED = 0.1
"""Share of its time that a process waits for processors from which on others are in its way."""
USER, NICE, SYSTEM, IDLE, IOWAIT, IRQ, SOFTIRQ, STEAL = range(8)


class ProcessorTime:
    """Processor time of this machine since the object was created."""

    def __init__(self) -> None:
        self._at_start = _processor_seconds()
        self._waited = _waiting_seconds()
        self._begin = time.monotonic()

    def shares(self) -> tuple[float | None, float | None]:
        """Shares of all processor time since the start: other processes' and the hypervisor's; None where unknown."""
        now = _processor_seconds()
        if now is None or self._at_start is None:
            return None, None
        busy, stolen, whole, own = (after - before for after, before in zip(now, self._at_start, strict=True))
        whole = max(whole, 1e-9)
        return min(1.0, max(0.0, busy - own) / whole), stolen / whole  # differences of large sums: 1 and a rounding

    def waiting_share(self) -> float | None:
        """Time that this process's threads were ready and had no processor, summed over threads, over the time that
        passed since the start; None where unknown."""
        now = _waiting_seconds()
        if not now or not self._waited:
            return None
        waited = sum(seconds - self._waited.get(thread, 0.0) for thread, seconds in now.items())
        return max(0.0, waited) / max(1e-9, time.monotonic() - self._begin)


def crowd_note(processors: ProcessorTime, threads: int) -> str:
    """What to do where `threads` threads of each operator waited for others' processes; empty where they did not."""
    waiting, (others, _) = processors.waiting_share(), processors.shares()
    if threads < 2 or waiting is None or others is None or waiting < CROWDED:
        return ""
    return (
        f"Others use {others:.0%} of the processors: threads of this process waited {waiting:.0%} of the time for one. "
        f"{threads} threads that wait for each other may take many times as long so; --threads 1 takes less."
    )


def thread_waiting_seconds() -> float:
    """Seconds that the calling thread has been ready and had no processor; 0 where unknown."""
    try:
        return int(OWN_THREAD.read_text().split()[1]) * NANO
    except (OSError, ValueError, IndexError):
        return 0.0


def _waiting_seconds() -> dict[str, float]:
    """Seconds that each living thread of this process waited for a processor, by its number; empty where unknown."""
    waited = {}
    try:
        for thread in THREADS.iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended
                waited[thread.name] = int((thread / "schedstat").read_text().split()[1]) * NANO
    except (OSError, ValueError, IndexError):
        return {}
    return waited


def _processor_seconds() -> tuple[float, float, float, float] | None:
    """Seconds on all processors: busy, stolen, all, and of this process with its children."""
    try:
        counted = [int(value) for value in STAT.read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    busy = sum(counted[kind] for kind in (USER, NICE, SYSTEM, IRQ, SOFTIRQ)) / ticks
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return busy, counted[STEAL] / ticks, sum(counted) / ticks, own
