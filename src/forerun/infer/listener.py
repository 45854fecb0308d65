"""Listen for HTTP requests as a service must that others can reach: nobody holds a connection without asking something.

uvicorn with two limits of its own: a request's head must have come within `HEAD_SECONDS` of its first byte (or of the
connection), and one address has at most `MOST_CONNECTIONS`. What comes after the head is the gate's (`gate.py`).

**Not covered:** TLS. A proxy in front brings it and passes on `Host`; the service then listens on 127.0.0.1.
"""

import asyncio
import errno
import socket
import sys
from collections.abc import Sequence
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE
from uvicorn.protocols.http.h11_impl import H11Protocol

from forerun.errors import InvalidSettings

HEAD_SECONDS = 10.0
"""Longest time from the beginning of a request to the end of its headers."""
IDLE_SECONDS = 5
"""Longest time that an answered connection is kept for another request."""
MOST_CONNECTIONS, MOST_OF_ALL = 64, 512
"""Connections of one address, and of all."""
TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class LimitedConnection(H11Protocol):
    """One connection of uvicorn's, with a deadline for the head of each request."""

    head_seconds, most_connections = HEAD_SECONDS, MOST_CONNECTIONS
    _deadline: asyncio.TimerHandle | None = None
    _is_handed_over = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse where this address has too many; else wait for a request."""
        super().connection_made(transport)
        address = self.client[0] if self.client else None
        others = [other for other in self.connections if isinstance(other, LimitedConnection) and other.client]
        if sum(other.client[0] == address for other in others if other.client) > self.most_connections:
            transport.abort()
        else:
            self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Pass on; the deadline stands until a request's head is whole."""
        super().data_received(data)
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering:
            self._stop_waiting()
        elif not (self._deadline or self._is_handed_over or self.transport.is_closing()):
            self._wait_for_head()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Hand the connection over to a websocket, which may be silent for as long as it likes."""
        super().handle_websocket_upgrade(event)
        self._is_handed_over = True
        self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._stop_waiting()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """The next request's deadline begins with its first byte; until then uvicorn's own for idle ones holds."""
        self._stop_waiting()
        super().on_response_complete()

    def _wait_for_head(self) -> None:
        self._deadline = asyncio.get_running_loop().call_later(self.head_seconds, self._drop)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _drop(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(TOO_SLOW)
            self.transport.close()


class ProxiedConnection(LimitedConnection):
    """One connection of a proxy, behind which all clients have one address; the proxy counts theirs."""

    most_connections = MOST_OF_ALL


def reserve_port(host: str, port: int) -> list[socket.socket]:
    """Sockets that hold `port` (0: a free one) of each address of `host`; they take connections once `listen` runs.

    Raises:
        InvalidSettings: another program has the port, or it or the address may not be used.
    """
    sockets: list[socket.socket] = []
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(places):
            number = sockets[0].getsockname()[1] if sockets else port  # that of the first, where any was asked for
            sockets.append(_bound(socket.socket(family, kind, protocol), (address[0], number, *address[2:])))
    except OSError as error:
        for each in sockets:
            each.close()
        raise InvalidSettings(_port_problem(host, port, error)) from error
    return sockets


def _bound(place: socket.socket, address: tuple[Any, ...]) -> socket.socket:
    try:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else a restart waits for old connections' end
        if place.family == socket.AF_INET6:
            place.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # 0.0.0.0 has a socket of its own
        place.bind(address)
    except OSError:
        place.close()
        raise
    return place


def _port_problem(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"--port: one that is free; {port} of {host} belongs to another program. Stop that, or name another port; "
            f"0 takes a free one."
        )
    if error.errno == errno.EACCES:
        return f"--port: one that this user may take; {port} is kept for the system. Name one above 1023."
    return f"--host: an address of this machine; found {host!r} ({error.strerror}). Name 127.0.0.1 or 0.0.0.0."


def announce(name: str, host: str, sockets: Sequence[socket.socket], path: str = "") -> None:
    """Print the address on stdout, and flush it: whoever redirects the output waits for this line."""
    url_host = f"[{host}]" if ":" in host else host
    address = f"http://{url_host}:{sockets[0].getsockname()[1]}"
    print(f"{name} at {address}{path}; what it takes: {address}/openapi.json", flush=True)


def listen(app: ASGIApp, sockets: Sequence[socket.socket]) -> None:
    """Serve the application until stopped, at sockets of `reserve_port`."""
    config = uvicorn.Config(
        app, http=LimitedConnection, log_level="warning", timeout_keep_alive=IDLE_SECONDS, limit_concurrency=MOST_OF_ALL
    )
    server = uvicorn.Server(config)
    try:
        server.run(sockets=list(sockets))
    except KeyboardInterrupt:  # uvicorn ends in order, then raises the signal again
        return
    if not server.started:
        sys.exit(STARTUP_FAILURE)
