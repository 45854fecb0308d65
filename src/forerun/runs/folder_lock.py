"""One process trains a run: a lock on its folder, which the kernel takes back when that process ends, however it ends.

A record lock (`fcntl.lockf`): it belongs to the process, so that workers of a loader, which outlive a killed run for
seconds, do not hold it, and it works on NFS. The file stays and says who had it last; it means nothing without a lock.

Not covered: two runs of one folder in threads of one process.
"""

import contextlib
import datetime as dt
import errno
import fcntl
import json
import os
import socket
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from forerun.errors import RunBusy, UserNote

NAME = "process.lock"
WAIT_SECONDS = 2.0
"""A process that was killed a moment ago may still be ending."""
POLL_SECONDS = 0.05
NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}


class NoFolderLocks(UserNote):
    """The file system has no locks; two processes could train one run."""


@contextlib.contextmanager
def only_process(folder: Path, wait_seconds: float | None = None) -> Iterator[None]:
    """Be the one process that trains the run of `folder` for as long as the block lasts.

    Raises:
        RunBusy: another process is, also after `wait_seconds` (default: `WAIT_SECONDS`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / NAME, "a+", encoding="utf-8") as file:
        until = time.monotonic() + (WAIT_SECONDS if wait_seconds is None else wait_seconds)
        while not _is_taken(file.fileno(), folder):
            if time.monotonic() > until:
                raise RunBusy(_busy_message(folder))
            time.sleep(POLL_SECONDS)
        file.truncate(0)
        since = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}))
        file.flush()
        yield


def trains_elsewhere(folder: Path) -> bool:
    """Whether another process trains the run of `folder` now."""
    try:
        with open(folder / NAME, "r+", encoding="utf-8") as file:
            return not _is_taken(file.fileno(), folder)
    except OSError:  # never trained here, or not to be written
        return False


def _is_taken(file: int, folder: Path) -> bool:
    """Try to take the lock of an open file; True also where the file system has none."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        if error.errno not in NO_LOCKS:
            raise
        warnings.warn(
            f"The file system of {folder} has no locks ({error.strerror}): nothing keeps a second process from going "
            f"on with the same run.",
            NoFolderLocks,
            stacklevel=4,
        )
    return True


def _busy_message(folder: Path) -> str:
    try:
        holder = json.loads((folder / NAME).read_text(encoding="utf-8"))
        who = f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
        remedy = f"Wait until it ends, or stop it there with kill {holder['pid']}; it saves a checkpoint first."
    except (OSError, ValueError, KeyError, TypeError):  # it has just taken the lock
        who, remedy = "another process", "Wait until it ends."
    return f"--resume: one process at a time trains a run; {folder.name} is trained by {who}. {remedy}"
