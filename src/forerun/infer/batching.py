"""Requests that arrive together are answered together: a queue in front of the model.

The first question waits at most `wait_seconds` for others; up to `most` go to the model in one call, in a thread of its
own, so that the event loop stays free. A full queue refuses at once instead of letting everybody wait.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class QueueFull(RuntimeError):
    """More questions are waiting than the queue holds."""


class Batcher(Generic[Question, Answer]):
    """Collects single questions into calls of `work`; use inside one event loop, between `start` and `stop`."""

    def __init__(
        self,
        work: Callable[[Sequence[Question]], Sequence[Answer]],
        *,
        most: int = 32,
        wait_seconds: float = 0.005,
        queue: int = 256,
    ):
        self._work, self._most, self._wait = work, most, wait_seconds
        self._room = queue
        self._queue: asyncio.Queue[tuple[Question, asyncio.Future[Answer]]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self.sizes: list[int] = []
        """Questions in each of the last calls."""

    @property
    def waiting(self) -> int:
        """Questions in the queue."""
        return self._queue.qsize()

    def start(self) -> None:
        """Begin to answer."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Answer nothing more; what waits is cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        while not self._queue.empty():
            self._queue.get_nowait()[1].cancel()
        self._thread.shutdown(wait=False)

    async def ask(self, questions: Sequence[Question]) -> list[Answer]:
        """Answers to `questions`, in order.

        Raises:
            QueueFull: there is no room for all of them.
        """
        if self._queue.qsize() + len(questions) > self._room:
            raise QueueFull(f"{self._queue.qsize()} questions are waiting; {self._room} is the most.")
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Answer]] = [loop.create_future() for _ in questions]
        for question, future in zip(questions, futures, strict=True):
            self._queue.put_nowait((question, future))
        return list(await asyncio.gather(*futures))

    async def _run(self) -> None:
        while True:
            batch: list[tuple[Question, asyncio.Future[Answer]]] = []
            try:
                await self._gather(batch)
                await self._answer([(question, future) for question, future in batch if not future.done()])
            finally:  # when stopped, nobody is left waiting
                for _, future in batch:
                    future.cancel()

    async def _gather(self, batch: list[tuple[Question, asyncio.Future[Answer]]]) -> None:
        """Wait for a question, then a little for more."""
        loop = asyncio.get_running_loop()
        batch.append(await self._queue.get())
        until = loop.time() + self._wait
        while len(batch) < self._most and (left := until - loop.time()) > 0:
            try:
                batch.append(await asyncio.wait_for(self._queue.get(), left))
            except TimeoutError:
                break
        while len(batch) < self._most and not self._queue.empty():
            batch.append(self._queue.get_nowait())

    async def _answer(self, batch: list[tuple[Question, asyncio.Future[Answer]]]) -> None:
        if not batch:
            return
        loop = asyncio.get_running_loop()
        self.sizes = [*self.sizes[-99:], len(batch)]
        work = loop.run_in_executor(self._thread, self._work, [question for question, _ in batch])
        await asyncio.wait([work])
        if (error := work.exception()) is not None:  # the model's own, whatever it is; whoever asked is told
            if len(batch) > 1:  # each alone, so that one question does not fail those of others
                for each in batch:
                    await self._answer([each])
            elif not batch[0][1].done():
                batch[0][1].set_exception(error)
            return
        answers = work.result()
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
