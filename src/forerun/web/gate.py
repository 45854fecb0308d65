"""Whom the pages answer: who calls them by one of their own names, from one of their own pages.

A page of another site can make its own name resolve to this machine and read answers (DNS rebinding), or open a
websocket to it, which browsers do not stop. So name and `Origin` of every request are looked at, of websockets too.
One address may ask so often and not more (`infer/request_rate.py`).
"""

import math
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from forerun.infer.request_rate import RequestRate, client_of

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class PageGate:
    """ASGI middleware: refuses what has a name that is not in `hosts`, comes from such a page, or too often."""

    def __init__(
        self, app: Callable[[Scope, Receive, Send], Awaitable[None]], hosts: Collection[str] = (),
        rate: RequestRate | None = None,
    ) -> None:  # fmt: skip
        self.app, self.hosts = app, {name.lower().strip("[]") for name in (*hosts, *LOCAL_NAMES)}
        self.rate = rate or RequestRate()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or answer 403 or 429; a websocket is closed before it is open."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        wait_seconds = math.ceil(self.rate.wait_seconds(client_of(scope)))
        problem = f"Too many requests; the next is answered in {wait_seconds} s." if wait_seconds else ""
        if not (problem := problem or self._foreign(dict(scope["headers"]))):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"text/plain; charset=utf-8")]
            headers += [(b"retry-after", str(wait_seconds).encode())] if wait_seconds else []
            await send({"type": "http.response.start", "status": 429 if wait_seconds else 403, "headers": headers})
            await send({"type": "http.response.body", "body": problem.encode()})

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
