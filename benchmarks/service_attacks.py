"""What does an attack on a served run get? Foreign names, half-sent and oversized requests, then load.

    python -m benchmarks.service_attacks RUN [--requests 200]        1 minute; server and clients share the cores

Starts `forerun serve RUN` on a free port of 127.0.0.1 and prints one row an attack: how many tried, how many got an
answer that they must not get, and when the last connection was dropped. Then clients that behave, while half-sent
requests are held open, and beside a flood from another address, which may get its rate and no more. One table and one
JSON line; exit code 4 where an attack got something.
"""

import argparse
import contextlib
import json
import socket
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from urllib.parse import urlparse

from benchmarks.serve import server

from forerun.infer.request_rate import BURST, PER_SECOND

METHOD = 2
FLOOD = 1500
FLOODER = "127.0.0.3"
"""Its own address, so that it takes nothing from the others."""
HALF_SENT = 60
"""Below what one address may hold, so that who behaves is answered meanwhile."""
LONGEST_SECONDS = 40.0
FOREIGN = {
    "foreign name": b"GET %s HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "foreign origin": b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: https://evil.example\r\n\r\n",
    "origin null": b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: null\r\n\r\n",
    "no name": b"GET %s HTTP/1.0\r\n\r\n",
}
PATHS = (b"/", b"/page.js", b"/openapi.json", b"/v1/status", b"/v1/detect", b"/v1/models", b"/health", b"/nothing")


@dataclass(frozen=True)
class Attack:
    """One kind of attack."""

    name: str
    tried: int
    got_something: int
    last_dropped_seconds: float | None = None
    refused: int | None = None


def answer(place: tuple[str, int], request: bytes, source: str = "127.0.0.1") -> bytes:
    """What the service says before it closes, or after five seconds."""
    content = b""
    with contextlib.suppress(OSError), socket.create_connection(place, 5, (source, 0)) as connection:
        connection.sendall(request)
        connection.settimeout(5)
        while b"\r\n\r\n" not in content and (chunk := connection.recv(4096)):
            content += chunk
    return content


def status(content: bytes) -> int:
    """The status code of an answer; 0 without one."""
    return int(content.split()[1]) if content.startswith(b"HTTP/") else 0


def foreign(place: tuple[str, int]) -> list[Attack]:
    """Requests by names that are not the service's, on every path."""
    return [
        Attack(name, len(PATHS), sum(status(answer(place, request % path)) not in (0, 400, 403) for path in PATHS))
        for name, request in FOREIGN.items()
    ]


def half_sent(place: tuple[str, int], name: str, request: bytes, number: int) -> Attack:
    """Requests that stop half-way: how many were still held at the end, and when the last one was dropped."""
    start, connections = time.monotonic(), []
    for _ in range(number):
        with contextlib.suppress(OSError):
            connection = socket.create_connection(place, 5)
            connection.sendall(request)
            connections.append(connection)
    left, dropped = 0, 0.0
    for connection in connections:
        with contextlib.suppress(ConnectionError), connection:
            connection.settimeout(max(0.1, start + LONGEST_SECONDS - time.monotonic()))
            try:
                while connection.recv(4096):
                    pass
            except TimeoutError:
                left += 1
        dropped = time.monotonic() - start
    return Attack(name, number, left, dropped)


def flood(place: tuple[str, int], number: int) -> Attack:
    """Requests as fast as one client can: those answered beyond its rate, or refused without a word of when to come."""
    start, counts = time.monotonic(), Counter[str]()
    for _ in range(number):
        content = answer(place, b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", FLOODER)
        is_right = status(content) == 429 and b"retry-after" in content.lower()
        counts["refused" if is_right else "answered"] += 1
    allowed = BURST + PER_SECOND * (time.monotonic() - start) + 1
    return Attack("flood", number, max(0, round(counts["answered"] - allowed)), None, counts["refused"])


def behaving(address: str, number: int) -> dict[str, float]:
    """Seconds to an answer of clients that behave, eight at a time."""
    import httpx2

    def one(_: int) -> tuple[int, float]:
        start = time.monotonic()
        code = httpx2.get(f"{address}/openapi.json", timeout=30).status_code
        return code, time.monotonic() - start

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(one, range(number)))
    seconds = sorted(each for _, each in results)
    errors = sum(code != 200 for code, _ in results)
    return {"requests": number, "errors": errors, "p50": seconds[number // 2], "p99": seconds[int(0.99 * number)]}


def main() -> None:
    """Attack, load, table, JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--requests", type=int, default=200)
    options = parser.parse_args()
    head = b"POST /v1/detect HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with server(options.run, PER_SECOND) as address:
        place = (urlparse(address).hostname or "", urlparse(address).port or 0)
        attacks = foreign(place)
        attacks.append(half_sent(place, "100 half heads", b"GET / HTTP/1.1\r\nHost: 127", 100))
        attacks.append(half_sent(place, "100 half bodies", head + b"Content-Length: 99\r\n\r\n{", 100))
        attacks.append(half_sent(place, "100 silent", b"", 100))
        huge = answer(place, head + b"Content-Length: 99999999\r\n\r\n")
        attacks.append(Attack("huge body announced", 1, int(status(huge) != 413)))
        quiet = behaving(address, options.requests)
        holder = threading.Thread(target=half_sent, args=(place, "held", b"GET /", HALF_SENT - 10), daemon=True)
        holder.start()
        time.sleep(0.5)
        loaded = behaving(address, options.requests)
        with ThreadPoolExecutor(1) as pool:
            flooding = pool.submit(flood, place, FLOOD)
            flooded = behaving(address, options.requests // 4)
        attacks.append(flooding.result())
    print(f"{'attack':22} {'tried':>6} {'got something':>13} {'last dropped after':>18}")
    for attack in attacks:
        dropped = "" if attack.last_dropped_seconds is None else f"{attack.last_dropped_seconds:.1f} s"
        refused = "" if attack.refused is None else f", {attack.refused} refused with 429"
        print(f"{attack.name:22} {attack.tried:6} {attack.got_something:13} {dropped:>18}{refused}")
    for name, row in (("alone", quiet), ("beside half-sent ones", loaded), ("beside a flood", flooded)):
        times = f"p50 {row['p50']:.3f} s, p99 {row['p99']:.3f} s"
        print(f"{name:22} {row['requests']:6} requests, {row['errors']} errors, {times}")
    print(json.dumps({"method": METHOD, "attacks": [asdict(a) for a in attacks], "alone": quiet, "beside": loaded,
                      "flooded": flooded}))  # fmt: skip
    sys.exit(4 if any(attack.got_something for attack in attacks) else 0)


if __name__ == "__main__":
    main()
