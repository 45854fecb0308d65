"""Processes that a program starts one by one (`multiprocessing.Process`), as in PyTorch's tutorial on distributed ones.

Where the machine has several cards they are its ranks, in the order in which they are started: one of them runs here,
and the others have ended. A module of its own, since the loop that starts them is none that repeats steps.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any

from torch import distributed

from forerun.virtual.cuda.lines import is_library, program_line
from forerun.virtual.put_back import replaced


class EndedProcess:
    """What a process that was not started has for its popen: it ended well (multiprocessing/popen_fork.py, 3.11)."""

    returncode = 0
    sentinel = -1

    def __init__(self) -> None:
        self.pid = os.getpid()

    def poll(self, *_: Any) -> int:
        """Its exit code."""
        return self.returncode

    wait = poll

    def terminate(self) -> None:
        """Nothing to end."""

    kill = close = terminate


@contextlib.contextmanager
def running_as_ranks(ranks: int, local_rank: int, others: list[str]) -> Iterator[None]:
    """Run a process that the program starts as rank `local_rank` of the `ranks` of this machine.

    `others` gets the line of each process that is started for something else, which runs for itself.
    """
    as_ranks, original = list[BaseProcess](), BaseProcess.start

    def start(process: Any) -> None:
        """Ranks are numbered in the order in which the program starts them; what is a rank itself starts others."""
        if is_library(sys._getframe(1).f_code.co_filename):
            original(process)
        elif ranks == 1 or (distributed.is_initialized() and not as_ranks):
            others.append(program_line())
            original(process)
        else:
            as_ranks.append(process)
            process._popen = EndedProcess()
            if len(as_ranks) == local_rank + 1:
                process.run()

    with replaced(BaseProcess, "start", start):
        yield
