"""Questions of one page to worker processes: one at a time, the newest wins, each can be cancelled."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from forerun.web.warm_workers import WarmWorkers

AT_ONCE = 2
"""Workers of all pages together; a step being traced takes a core and up to 2 GiB."""
LIMIT_SECONDS = 900.0
Answer = Mapping[str, Any]


class SizesNearby:
    """Traces the sizes around the last forecast while nobody waits for an answer (`forecasting/nearby.py`).

    What it has traced is kept, so that a question may end it at any time.
    """

    def __init__(self) -> None:
        self._waiting = 0
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing of it runs inside."""
        self._waiting += 1
        self.stop()
        try:
            yield
        finally:
            self._waiting -= 1

    def trace_around(self, question: Mapping[str, Any]) -> None:
        """Begin, if nobody waits and there are workers that need not import."""
        if not self._waiting and Asker.warm is not None and Asker.warm.is_ready:
            self.stop()
            self._task = asyncio.create_task(self._trace({**question, "kind": "nearby"}, Asker.warm))

    def stop(self) -> None:
        """End what is traced now."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def _trace(self, question: Mapping[str, Any], warm: WarmWorkers) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(LIMIT_SECONDS):
                await warm.ask(question, lambda line: None)


class Asker:
    """Asks for one page: a new question ends the one before."""

    gate = asyncio.Semaphore(AT_ONCE)
    nearby = SizesNearby()
    warm: WarmWorkers | None = None
    """Workers that have imported what answers need; None where each is started afresh."""

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
    with Asker.nearby.paused():
        answer = await _answer_of(question, on_progress, limit_seconds)
    if question["kind"] == "forecast" and "error" not in answer:
        Asker.nearby.trace_around(question)
    return answer


async def _answer_of(
    question: Mapping[str, Any], on_progress: Callable[[str], None], limit_seconds: float
) -> Answer:  # fmt: skip
    async with Asker.gate:
        try:
            async with asyncio.timeout(limit_seconds):
                text, last, code = await _reply_of(question, on_progress)
        except TimeoutError:
            return {"error": f"No answer within {limit_seconds:.0f} s. Ask the command line, which has no limit."}
    try:
        return json.loads(text)
    except ValueError:
        return {"error": f"The worker ended with code {code}: {last or 'it said nothing'}"}


async def _reply_of(question: Mapping[str, Any], on_progress: Callable[[str], None]) -> tuple[str, str, int | None]:
    """Text, last line of progress and exit code of a worker, warm where there is one."""
    if Asker.warm is not None and Asker.warm.is_ready:
        try:
            return await Asker.warm.ask(question, on_progress)
        except OSError:
            Asker.warm.restart()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "forerun.cli.ui_worker",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        limit=2**26,
    )  # fmt: skip
    assert process.stdin is not None, "asked for above"
    assert process.stdout is not None, "asked for above"
    assert process.stderr is not None, "asked for above"
    try:
        process.stdin.write(json.dumps(question).encode())
        process.stdin.close()
        text, last = await asyncio.gather(process.stdout.read(), _told(process.stderr, on_progress))
        await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    return text.decode(), last, process.returncode


async def _told(stream: asyncio.StreamReader, on_progress: Callable[[str], None]) -> str:
    """Give every line on; the last one."""
    last = ""
    async for line in stream:
        last = line.decode(errors="replace").strip() or last
        on_progress(last)
    return last
