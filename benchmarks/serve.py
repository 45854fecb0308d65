"""How fast a served detector answers on loopback, and whether it answers the same alone and together.

    python benchmarks/serve.py RUN [--requests 400]        2 minutes; server and clients share the cores

Starts `forerun serve RUN` on a free port of 127.0.0.1, sends the shipped test files with 1, 4 and 16 clients at once,
then pairs to compare, then asks 200 files alone and in batches of 50. Prints p50, p95 and p99 of the time to an answer,
answers per second, and the largest difference of a score. Method version 1: each client sends its next request when the
last is answered; the first 20 answers of a level do not count.
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import httpx2
import numpy as np
from rich.console import Console

from forerun.recipes.code_detector.data.corpus import embedded
from forerun.report.tables import Cell, ResultTable
from forerun.report.terminal import result_table

LEVELS = (1, 4, 16)
WARMING = 20
START_SECONDS = 180
BATCH = 50


def server(run: str, rate: float = 0.0) -> contextlib.AbstractContextManager[str]:
    """Address of the service of a detector in a process of its own, while the block lasts."""
    return started(["serve", run, "--no-store", "--rate", str(rate)], "/v1/status")


@contextlib.contextmanager
def started(words: Sequence[str], path: str) -> Iterator[str]:
    """Address of `forerun WORDS --port …`, once it answers `path`, while the block lasts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "forerun", *words, "--port", str(port)]
    process = subprocess.Popen(command, env=os.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(httpx2.TransportError):
                if httpx2.get(f"{address}{path}").status_code == 200:
                    break
            if process.poll() is not None or time.monotonic() > until:
                sys.exit(f"the service did not start (exit code {process.poll()}).")
            time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait(30)


async def load(address: str, path: str, bodies: list[dict[str, object]], clients: int) -> tuple[list[float], float]:
    """Seconds to each answer, and answers per second, with so many clients at once."""
    seconds: list[float] = []
    waiting = iter(bodies)

    async def client(connection: httpx2.AsyncClient) -> None:
        for body in waiting:
            start = time.perf_counter()
            response = await connection.post(path, json=body)
            seconds.append(time.perf_counter() - start)
            response.raise_for_status()

    async with httpx2.AsyncClient(base_url=address, timeout=60) as connection:
        begin = time.perf_counter()
        await asyncio.gather(*(client(connection) for _ in range(clients)))
        return seconds[WARMING:], len(bodies) / (time.perf_counter() - begin)


def row(name: str, clients: int, timing: tuple[list[float], float]) -> list[Cell]:
    """Percentiles in ms."""
    seconds, per_second = timing
    return [name, clients, len(seconds), *(1e3 * float(np.quantile(seconds, q)) for q in (0.5, 0.95, 0.99)), per_second]


def same_scores(address: str, files: list[dict[str, object]]) -> float:
    """Largest difference of a score asked alone and in a batch."""
    largest = 0.0
    with httpx2.Client(base_url=address, timeout=60) as connection:
        for start in range(0, len(files), BATCH):
            part = files[start : start + BATCH]
            together = connection.post("/v1/batch", json={"files": part, "shown": 1}).json()["files"]
            for file, answer in zip(part, together, strict=True):
                alone = connection.post("/v1/detect", json=file).json()
                if (alone["verdict"], alone["tokens"]) != (answer["verdict"], answer["tokens"]):
                    sys.exit(f"another verdict alone and in a batch: {alone['verdict']}, {answer['verdict']}")
                if alone["probability"] is not None:
                    largest = max(largest, abs(alone["probability"] - answer["probability"]))
    return largest


def main() -> None:
    """Print the table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--requests", type=int, default=400)
    arguments = parser.parse_args()
    samples = embedded().split("test")
    files: list[dict[str, object]] = [{"code": s.code, "language": s.language} for s in samples]
    singles = [files[n % len(files)] for n in range(arguments.requests)]
    pairs: list[dict[str, object]] = [
        {"a": a, "b": b} for a, b in zip(singles, [*singles[1:], singles[0]], strict=True)
    ]
    work: list[tuple[str, list[dict[str, object]]]] = [("/v1/detect", singles), ("/v1/similarity", pairs)]
    rows: list[list[Cell]] = []
    with server(arguments.run) as address:
        for path, bodies in work:
            for clients in LEVELS:
                timing = asyncio.run(load(address, path, bodies, clients))
                rows.append(row(path, clients, timing))
        difference = same_scores(address, files[:200])
    columns = ["request", "clients", "answers", "p50 ms", "p95 ms", "p99 ms", "answers/s"]
    Console().print(result_table(ResultTable(title="Service on loopback", columns=columns, rows=rows)))
    figures = [dict(zip(columns, each, strict=True)) for each in rows]
    print(json.dumps({"benchmark": "serve", "version": 1, "rows": figures, "largest_difference": difference}))


if __name__ == "__main__":
    main()
