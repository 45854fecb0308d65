"""How often one client may ask: a bucket of tokens for each address, refilled at a steady rate.

A request takes a token; without one the answer is 429 and says in how many seconds the next token is there. Addresses
are those of connections: behind a proxy all clients have one, so the proxy limits them and this is turned off.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

PER_SECOND, BURST = 50.0, 500
"""Requests a second of one address in the long run, and at once; a choice: several times what a core answers."""
MOST_CLIENTS = 10_000
"""Addresses that are remembered; who has not asked for longest is forgotten first, and begins with a full bucket."""


class RequestRate:
    """Tokens of every client, in requests; `clock` gives seconds."""

    def __init__(
        self, per_second: float = PER_SECOND, burst: int = BURST, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.per_second, self.burst, self.clock = per_second, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_seconds(self, client: str) -> float:
        """Take a token of a client; 0 where there was one, else the seconds until there is one."""
        now = self.clock()
        tokens, before = self._buckets.pop(client, (float(self.burst), now))
        tokens = min(float(self.burst), tokens + max(0.0, now - before) * self.per_second)
        is_allowed = tokens >= 1
        self._buckets[client] = (tokens - is_allowed, now)
        if len(self._buckets) > MOST_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if is_allowed else (1 - tokens) / self.per_second


def rate_of(per_second: float) -> RequestRate | None:
    """A limit of so many requests a second, ten times as many at once; None for 0: any number."""
    return RequestRate(per_second, max(1, round(per_second * BURST / PER_SECOND))) if per_second > 0 else None


def client_of(scope: Mapping[str, Any]) -> str:
    """Address that an ASGI request comes from; of IPv6 the network of 64 bits, which one client has for itself."""
    address = str((scope.get("client") or ("",))[0])
    groups = address.split(":")
    return ":".join(groups[:4]) if len(groups) > 4 and "" not in groups[:4] else address
