"""What does an attack on a service get? Foreign names, half-sent and oversized requests, then load.

    python -m benchmarks.service_attacks --detector RUN --own RUN --ui        1.5 minutes a service, which shares cores

Starts `forerun serve RUN` (a detector, or a run on own data) or `forerun ui` on a free port of 127.0.0.1 and prints one
row an attack: how many tried, how many got an answer that they must not get, and when the last connection was dropped.
Then clients that behave, while half-sent requests are held open, and beside a flood from another address, which may get
its rate and no more. One table a service and one JSON line; exit code 4 where an attack got something.
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
from typing import Any
from urllib.parse import urlparse

from benchmarks.serve import started

from forerun.infer.request_rate import BURST, PER_SECOND

METHOD = 3
FLOOD = 1500
FLOODER = "127.0.0.3"
"""Its own address, so that it takes nothing from the others."""
HALF_SENT = 60
"""Below what one address may hold, so that who behaves is answered meanwhile."""
LONGEST_SECONDS = 40.0
REFUSALS = (400, 403, 404, 405, 413)
"""Answers to a body that is larger than any that is taken: that, or that none is taken there."""
Content = dict[str, Any]
FOREIGN = {
    "foreign name": b"GET %s HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "foreign origin": b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: https://evil.example\r\n\r\n",
    "origin null": b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: null\r\n\r\n",
    "no name": b"GET %s HTTP/1.0\r\n\r\n",
}
PATHS = (b"/", b"/page.js", b"/openapi.json", b"/v1/status", b"/v1/detect", b"/v1/models", b"/health", b"/nothing")


@dataclass(frozen=True)
class Service:
    """What is started, where it takes a body, and what it answers to anybody who behaves."""

    name: str
    words: tuple[str, ...]
    post: str
    page: str = "/openapi.json"


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


def flood(place: tuple[str, int], page: str, number: int) -> Attack:
    """Requests as fast as one client can: those answered beyond its rate, or refused without a word of when to come."""
    request = f"GET {page} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
    start, counts = time.monotonic(), Counter[str]()
    for _ in range(number):
        content = answer(place, request, FLOODER)
        is_right = status(content) == 429 and b"retry-after" in content.lower()
        counts["refused" if is_right else "answered"] += 1
    allowed = BURST + PER_SECOND * (time.monotonic() - start) + 1
    return Attack("flood", number, max(0, round(counts["answered"] - allowed)), None, counts["refused"])


def behaving(page: str, number: int) -> dict[str, float]:
    """Seconds to an answer of clients that behave, eight at a time, each within what one address may ask."""
    import httpx2

    def one(_: int) -> tuple[int, float]:
        start = time.monotonic()
        code = httpx2.get(page, timeout=30).status_code
        return code, time.monotonic() - start

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(one, range(number)))
    seconds = sorted(each for _, each in results)
    errors = sum(code != 200 for code, _ in results)
    return {"requests": number, "errors": errors, "p50": seconds[number // 2], "p99": seconds[int(0.99 * number)]}


def attacked(service: Service, requests: int) -> Content:
    """What every attack on a service got, and how those who behave fared beside."""
    head = f"POST {service.post} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n".encode()
    with started(service.words, service.page) as address:
        place, page = (urlparse(address).hostname or "", urlparse(address).port or 0), address + service.page
        attacks = foreign(place)
        attacks.append(half_sent(place, "100 half heads", b"GET / HTTP/1.1\r\nHost: 127", 100))
        attacks.append(half_sent(place, "100 half bodies", head + b"Content-Length: 99\r\n\r\n{", 100))
        attacks.append(half_sent(place, "100 silent", b"", 100))
        huge = answer(place, head + b"Content-Length: 99999999\r\n\r\n")
        attacks.append(Attack("huge body announced", 1, int(status(huge) not in REFUSALS)))
        quiet = behaving(page, requests)
        holder = threading.Thread(target=half_sent, args=(place, "held", b"GET /", HALF_SENT - 10), daemon=True)
        holder.start()
        time.sleep(0.5)
        loaded = behaving(page, requests)
        with ThreadPoolExecutor(1) as pool:
            flooding = pool.submit(flood, place, service.page, FLOOD)
            flooded = behaving(page, requests // 4)
        attacks.append(flooding.result())
    load = {"alone": quiet, "beside": loaded, "flooded": flooded}
    return {"name": service.name, "attacks": [asdict(attack) for attack in attacks], **load}


def show(result: Content) -> None:
    """Print the table of a service."""
    print(f"\n{result['name']:22} {'tried':>6} {'got something':>13} {'last dropped after':>18}")
    for attack in result["attacks"]:
        seconds, refused = attack["last_dropped_seconds"], attack["refused"]
        dropped = "" if seconds is None else f"{seconds:.1f} s"
        more = "" if refused is None else f", {refused} refused with 429"
        print(f"{attack['name']:22} {attack['tried']:6} {attack['got_something']:13} {dropped:>18}{more}")
    for label, name in (("alone", "alone"), ("beside half-sent ones", "beside"), ("beside a flood", "flooded")):
        row = result[name]
        times = f"p50 {row['p50']:.3f} s, p99 {row['p99']:.3f} s"
        print(f"{label:22} {row['requests']:6} requests, {row['errors']} errors, {times}", flush=True)


def main() -> None:
    """Attack, load, table, JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--detector", metavar="RUN", help="A run of a detector to serve.")
    parser.add_argument("--own", metavar="RUN", help="A run on own data that classifies, to serve.")
    parser.add_argument("--ui", action="store_true", help="Attack the pages of `forerun ui` too.")
    parser.add_argument("--requests", type=int, default=200)
    options = parser.parse_args()
    rate, services = ("--rate", str(PER_SECOND)), list[Service]()
    if options.detector:
        services.append(Service("detector", ("serve", options.detector, "--no-store", *rate), "/v1/detect"))
    if options.own:
        services.append(Service("run on own data", ("serve", options.own, *rate), "/v1/classify"))
    if options.ui:
        services.append(Service("pages of ui", ("ui",), "/_nicegui_ws/socket.io/?EIO=4&transport=polling", "/"))
    results = [attacked(service, options.requests) for service in services]
    for result in results:
        show(result)
    print(json.dumps({"method": METHOD, "services": results}))
    sys.exit(4 if any(attack["got_something"] for result in results for attack in result["attacks"]) else 0)


if __name__ == "__main__":
    main()
