"""Workers that are there before the question: forks of one process that has imported PyTorch (`ui_fork_server.py`).

Until that process is ready, and after it has ended, `is_ready` is false and `asking.py` starts a fresh worker.
"""

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

ANSWER, ENDED = "\0answer ", "\0ended "
"""Beginnings of the lines that are no progress."""
SERVER = ("-m", "forerun.cli.ui_fork_server")
MOST_BYTES = 2**26
"""Of one line."""


class WarmWorkers:
    """The process that forks, started by `start` and gone with this one."""

    def __init__(self, server: Sequence[str] = SERVER) -> None:
        self._server = server
        self._folder = tempfile.TemporaryDirectory(prefix="forerun-ui-")
        self._process: asyncio.subprocess.Process | None = None
        self._starts = 0
        self._starting: asyncio.Task[None] | None = None
        self.is_ready = False

    @property
    def _socket(self) -> str:
        return f"{self._folder.name}/{self._starts}"

    async def start(self) -> None:
        """Start it and wait until it can be asked."""
        self._starts += 1
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *self._server, self._socket,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdout is not None, "asked for above"
        self.is_ready = bool(await self._process.stdout.readline())

    def restart(self) -> None:
        """Start it again, after it has ended, and do not wait."""
        self.is_ready = False
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self.start())

    async def ask(self, question: Mapping[str, Any], on_progress: Callable[[str], None]) -> tuple[str, str, int | None]:
        """Answer (empty where there is none), last line of progress, and code of a worker that ended without one.

        Raises:
            OSError: nobody listens.
        """
        reader, writer = await asyncio.open_unix_connection(self._socket, limit=MOST_BYTES)
        try:
            writer.write(json.dumps(question).encode() + b"\n")
            last = ""
            while data := await reader.readline():
                line = data.decode(errors="replace").rstrip("\n")
                if line.startswith(ANSWER):
                    return line.removeprefix(ANSWER), last, None
                if line.startswith(ENDED):
                    return "", last, int(line.removeprefix(ENDED))
                if line.strip():
                    last = line.strip()
                    on_progress(last)
            return "", last, None
        finally:
            writer.close()  # ends the worker, if it is still at work

    def stop(self) -> None:
        """End it and its workers."""
        self.is_ready = False
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(OSError):
            self._folder.cleanup()
