"""Checks of every request before anything reads it (rate, name, origin, token, size), and headers of every answer.

A page of another site can make its own name resolve to this machine and then read answers (DNS rebinding), so a request
must call the service by one of its own names, and an `Origin`, where there is one, must be one of them too.

Plain ASGI, so that a body that is too large is refused before it is collected.
"""

import hmac
import json
import math
from collections.abc import Callable, Collection
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.infer.body_limit import DRAINED, READ_SECONDS, answer_within, drain, length_problem
from forerun.infer.request_rate import RequestRate, client_of

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
OPEN_PATHS = {"/", "/page.js", "/page.css"}
"""Need no token: the page itself holds nothing."""
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"x-frame-options", b"DENY"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
)


class Gate:
    """ASGI middleware: how often one address may ask (any where `rate` is None), names it may be called by (all where
    `hosts` is None), token, size of the body, headers.
    """

    def __init__(
        self, app: ASGIApp, most_bytes: int, token: str | None = None, hosts: Collection[str] | None = None,
        read_seconds: float = READ_SECONDS, rate: RequestRate | None = None,
        form: Callable[[int, str], Any] = lambda status, problem: {"problem": problem, "where": []},
    ):  # fmt: skip
        """`form` makes the JSON of a refusal from its status and words."""
        self.form = form
        self.app, self.most_bytes, self.read_seconds, self.rate = app, most_bytes, read_seconds, rate
        self.hosts = None if hosts is None else {name.lower() for name in (*hosts, *LOCAL_NAMES)}
        self.token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or answer 400, 401, 403, 408, 413 or 429."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        wait_seconds = 0.0 if self.rate is None else self.rate.wait_seconds(client_of(scope))
        refusal = (429, too_often(wait_seconds)) if wait_seconds else self._refusal(scope["path"], headers)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        if refusal is not None:
            if refusal[0] == 413 and int(headers[b"content-length"][:20]) <= DRAINED * self.most_bytes:
                await drain(receive, self.read_seconds)
            await self._say(sending, *refusal, wait_seconds)
            return
        problem = await answer_within(
            self.app, scope, receive, sending, most_bytes=self.most_bytes, read_seconds=self.read_seconds
        )
        if problem is not None:
            await self._say(sending, *problem)

    async def _say(self, send: Send, status: int, problem: str, wait_seconds: float = 0.0) -> None:
        body = json.dumps(self.form(status, problem)).encode()
        headers: list[Any] = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if status == 408:
            headers.append((b"connection", b"close"))
        if wait_seconds:
            headers.append((b"retry-after", str(math.ceil(wait_seconds)).encode()))
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _refusal(self, path: str, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        if self.hosts is not None and (problem := self._foreign(headers)):
            return 403, problem
        if self.token is not None and path not in OPEN_PATHS:
            credentials = headers.get(b"authorization", b"")
            # in constant time: == would tell by its time how many bytes of a guess are right
            if not hmac.compare_digest(credentials, b"Bearer " + self.token):
                return 401, "This service wants a token: send the header Authorization: Bearer TOKEN."
        return length_problem(headers, self.most_bytes)

    def _foreign(self, headers: dict[bytes, bytes]) -> str | None:
        """What is wrong with the name that a request calls the service by, or with the page that it comes from."""
        assert self.hosts is not None
        name = _host_name(headers.get(b"host", b"").decode("latin-1"))
        if name not in self.hosts:
            return "The service is not called by this name: the header Host must be one of its own names."
        origin = headers.get(b"origin")
        if origin is not None and _host_name(origin.decode("latin-1").partition("://")[2]) not in self.hosts:
            return "Pages of other sites may not ask this service (header Origin)."
        return None


def _host_name(text: str) -> str:
    """The name of `name:port`, in small letters; `[::1]:8000` is `[::1]`."""
    return (text.partition("]")[0] + "]" if text.startswith("[") else text.partition(":")[0]).lower()


def too_often(wait_seconds: float) -> str:
    """What a client reads that asks too often."""
    return f"Too many requests from this address. The next one is answered in {math.ceil(wait_seconds)} s."
