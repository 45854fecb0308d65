"""Questions of one page to worker processes: one at a time, the newest wins, each can be cancelled."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

AT_ONCE = 2
"""Workers of all pages together; a step being traced takes a core and up to 2 GiB."""
LIMIT_SECONDS = 900.0
Answer = Mapping[str, Any]


class Asker:
    """Asks for one page: a new question ends the one before."""

    gate = asyncio.Semaphore(AT_ONCE)

    def __init__(self, ask: "Callable[..., Awaitable[Answer]] | None" = None) -> None:
        self._ask = ask or answer_of
        self._task: asyncio.Task[Answer] | None = None

    async def ask(self, question: Mapping[str, Any], on_progress: Callable[[str], None]) -> Answer | None:
        """The answer of a worker; None where another question, or `cancel`, came meanwhile."""
        self.cancel()
        self._task = task = asyncio.create_task(self._answer(question, on_progress))
        try:
            return await task
        except asyncio.CancelledError:
            if task.cancelled() and self._task is not task:
                return None
            raise

    async def _answer(self, question: Mapping[str, Any], on_progress: Callable[[str], None]) -> Answer:
        return await self._ask(question, on_progress)

    def cancel(self) -> None:
        """End what is asked now, its process too."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()


async def answer_of(
    question: Mapping[str, Any], on_progress: Callable[[str], None], *, limit_seconds: float = LIMIT_SECONDS
) -> Answer:
    """What a worker answers; its lines of progress are given to `on_progress`."""
    async with Asker.gate:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "forerun.cli.ui_worker",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            limit=2**26,
        )  # fmt: skip
        assert process.stdin is not None, "asked for above"
        assert process.stdout is not None, "asked for above"
        assert process.stderr is not None, "asked for above"
        try:
            async with asyncio.timeout(limit_seconds):
                process.stdin.write(json.dumps(question).encode())
                process.stdin.close()
                text, last = await asyncio.gather(process.stdout.read(), _told(process.stderr, on_progress))
                await process.wait()
        except TimeoutError:
            return {"error": f"No answer within {limit_seconds:.0f} s. Ask the command line, which has no limit."}
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        try:
            return json.loads(text)
        except ValueError:
            return {"error": f"The worker ended with code {process.returncode}: {last or 'it said nothing'}"}


async def _told(stream: asyncio.StreamReader, on_progress: Callable[[str], None]) -> str:
    """Give every line on; the last one."""
    last = ""
    async for line in stream:
        last = line.decode(errors="replace").strip() or last
        on_progress(last)
    return last
