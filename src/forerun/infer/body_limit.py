"""A request's body has a size and a deadline: half of one is not waited for, and a huge one is not collected.

Plain ASGI, inside whatever gate a service has (`infer/gate.py`, `web/gate.py`).
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

READ_SECONDS = 20.0
"""Longest time that a request's body may take to come."""
DRAINED = 8
"""A refused body of up to so many times the bytes that are allowed is read and dropped, or its client would see a reset
connection in place of the answer: uvicorn closes one with unread bytes."""
Problem = tuple[int, str]
"""Status and words of a refusal."""


class BodyRefused(Exception):
    """More bytes came than are allowed, or they came too slowly."""


def length_problem(headers: Mapping[bytes, bytes], most_bytes: int) -> Problem | None:
    """What is wrong with the length that a request announces; None where nothing is."""
    length = headers.get(b"content-length")
    if length is not None and not length.isdigit():
        return 400, "Content-Length must be a number of bytes."
    if length is not None and int(length[:20]) > most_bytes:
        return 413, _too_large(most_bytes)
    return None


async def answer_within(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, *, most_bytes: int, read_seconds: float = READ_SECONDS
) -> Problem | None:
    """Let `app` answer; what is wrong with the request's body where it was left without an answer because of that."""
    started, is_whole, read_bytes, until = False, False, 0, time.monotonic() + read_seconds
    problem: Problem | None = None

    async def sending(message: Message) -> None:
        nonlocal started
        if problem is not None and not started:  # whoever reads the body may have made another answer of it
            return
        started = started or message["type"] == "http.response.start"
        await send(message)

    async def receiving() -> Message:
        nonlocal read_bytes, problem, is_whole
        if is_whole:  # what comes now is the client's leaving, which has no deadline
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), max(0.0, until - time.monotonic()))
        except TimeoutError:
            problem = 408, f"The body must come within {read_seconds:g} seconds."
            raise BodyRefused from None
        read_bytes += len(message.get("body", b""))
        is_whole = not message.get("more_body", False)
        if read_bytes > most_bytes:
            problem = 413, _too_large(most_bytes)
            raise BodyRefused
        return message

    with contextlib.suppress(BodyRefused):
        await app(scope, receiving, sending)
    return None if started else problem


async def drain(receive: Receive, seconds: float) -> None:
    """Read a body and keep nothing of it, for at most so many seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while (await receive()).get("more_body", False):
                pass


def _too_large(most_bytes: int) -> str:
    return f"The body may have {most_bytes:,} bytes. Send fewer or smaller files."
