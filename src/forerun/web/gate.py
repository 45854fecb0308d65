"""Whom the pages answer: who calls them by one of their own names, from one of their own pages.

A page of another site can make its own name resolve to this machine and read answers (DNS rebinding), or open a
websocket to it, which browsers do not stop. So name and `Origin` of every request are looked at, of websockets too.
One address may ask so often and not more (`infer/request_rate.py`), and a body has a size and a deadline.
"""

import math
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from forerun.infer.body_limit import READ_SECONDS, answer_within, length_problem
from forerun.infer.request_rate import RequestRate, client_of
from forerun.units import MIB

MOST_BYTES = 4 * MIB
"""Of a body: a script and what a form puts around it; a browser's messages come by websocket."""
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class PageGate:
    """ASGI middleware: refuses what has a name that is not in `hosts`, comes from such a page, or too often."""

    def __init__(
        self, app: Callable[[Scope, Receive, Send], Awaitable[None]], hosts: Collection[str] = (),
        rate: RequestRate | None = None, read_seconds: float = READ_SECONDS,
    ) -> None:  # fmt: skip
        self.app, self.hosts = app, {name.lower().strip("[]") for name in (*hosts, *LOCAL_NAMES)}
        self.rate, self.read_seconds = rate or RequestRate(), read_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or answer 400, 403, 408, 413 or 429; a websocket is closed before it is open."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        wait_seconds, headers = math.ceil(self.rate.wait_seconds(client_of(scope))), dict(scope["headers"])
        problem = (429, f"Too many requests; the next is answered in {wait_seconds} s.") if wait_seconds else None
        if not problem and (reason := self._foreign(headers)):
            problem = 403, reason
        if scope["type"] == "websocket":
            await (send({"type": "websocket.close", "code": 1008}) if problem else self.app(scope, receive, send))
            return
        problem = problem or length_problem(headers, MOST_BYTES)
        problem = problem or await answer_within(
            self.app, scope, receive, send, most_bytes=MOST_BYTES, read_seconds=self.read_seconds
        )
        if problem:
            status, words = problem
            answer = [(b"content-type", b"text/plain; charset=utf-8")]
            answer += [(b"retry-after", str(wait_seconds).encode())] if wait_seconds else []
            answer += [(b"connection", b"close")] if status in (408, 413) else []
            await send({"type": "http.response.start", "status": status, "headers": answer})
            await send({"type": "http.response.body", "body": words.encode()})

    def _foreign(self, headers: dict[bytes, bytes]) -> str:
        """Why a request is foreign; empty where it is not."""
        host, origin = headers.get(b"host", b"").decode("latin-1"), headers.get(b"origin", b"").decode("latin-1")
        if _name(f"//{host}") not in self.hosts:
            return f"These pages do not go by the name {host!r}. Open them as http://127.0.0.1, or start with --host."
        if origin and origin != "null" and urlsplit(origin).netloc.lower() != host.lower():
            return f"These pages do not answer pages of {origin!r}."
        return "" if origin != "null" else "These pages do not answer pages without an origin."


def _name(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""
