"""A text that nobody waits for any more is not written on, and one that took too long says so."""

import asyncio
import threading
import time

import anyio
import pytest

from forerun.serving.app import TextServiceLimits, WritingQueue, _whole
from forerun.serving.test_app import writer
from forerun.serving.writing import Sampling

__all__ = ["writer"]
LONG = Sampling(new_tokens=40)


class Leaving:
    """A client that leaves after so many pieces."""

    def __init__(self, pieces):
        self.pieces = pieces

    async def is_disconnected(self):
        self.pieces -= 1
        return self.pieces < 0


@pytest.fixture
def endless(writer, monkeypatch):
    monkeypatch.setattr(writer, "end_ids", ())
    return writer


def test_a_client_that_left_keeps_nobody_waiting(endless):
    queue = WritingQueue(endless, TextServiceLimits())
    ids = endless.text_ids("six seven")
    whole, writing = asyncio.run(_whole(queue, ids, LONG, Leaving(1000)))
    assert (writing.new_tokens, writing.finish_reason) == (40, "length")
    begun, writing = asyncio.run(_whole(queue, ids, LONG, Leaving(2)))
    assert writing.is_cancelled
    assert whole.startswith(begun)
    assert len(begun) < len(whole)
    assert asyncio.run(_whole(queue, ids, LONG, Leaving(0)))[0] == ""
    assert queue.waiting == 0


def test_time_that_is_up_reads_as_length(endless):
    queue = WritingQueue(endless, TextServiceLimits(seconds=0))
    text, writing = asyncio.run(_whole(queue, endless.text_ids("six seven"), LONG, Leaving(1000)))
    assert text
    assert (writing.is_cancelled, writing.finish_reason) == (True, "length")


class Slow:
    """A text whose second piece takes a while, as `Writing` is asked."""

    def __init__(self):
        self.is_cancelled, self.finish_reason, self.events = False, "stop", []
        self.is_writing = threading.Event()

    def cancel(self):
        self.is_cancelled = True

    def __iter__(self):
        try:
            yield "one"
            self.is_writing.set()
            time.sleep(0.2)
            self.events.append("second piece is written")
            yield "two"
        finally:
            self.events.append("closed")


def test_a_turn_ends_after_the_piece_that_was_being_written_when_its_client_left():
    queue, slow, faults = WritingQueue(None, TextServiceLimits()), Slow(), []

    async def read():
        async with queue.turn():
            async for _ in queue.pieces(slow):
                pass

    async def leave():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["message"]))
        async with anyio.create_task_group() as group:  # Starlette's way to end a stream
            group.start_soon(read)
            await asyncio.to_thread(slow.is_writing.wait)
            group.cancel_scope.cancel()
        async with queue.turn():
            slow.events.append("next turn")

    asyncio.run(leave())
    assert slow.events == ["second piece is written", "closed", "next turn"]
    assert slow.is_cancelled
    assert faults == []
