"""A text that nobody waits for any more is not written on, and one that took too long says so."""

import asyncio

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
