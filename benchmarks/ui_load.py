"""Twenty people at once on the public pages: seconds of kept and of new answers, and of the page itself.

    python -m benchmarks.ui_load [--visitors 20]         a table and one JSON line

`page` is the HTML over HTTP from `forerun ui --public` on this machine, every visitor at once, five times. `kept` and
`new` are answers as the page gets them (`web/shared_answers.py`, with real workers and an empty cache): all visitors
ask the same 7B question that nobody asked before, then it again, then each one of their own. An answer whose settings
are not those that were asked is a cross-talk. Goals on a quiet machine of two cores: 95 % of kept answers in 500 ms,
of new ones in 15 s. Workers are warm (`web/warm_workers.py`), as those of a server are some seconds after it has
started: `ready` is how long that took. `nearby` is each visitor's own batch size, once the sizes around the first
question were traced (`forecasting/nearby.py`), for which `tracing` is the time. Method version 2.
"""

import argparse
import asyncio
import concurrent.futures
import json
import os
import subprocess
import sys
import time
import urllib.request
from typing import Any

import numpy as np

from forerun.cli.ui_command import leaving_nothing
from forerun.settings.load import settings_from
from forerun.web.asking import Asker
from forerun.web.question import PageQuestion
from forerun.web.shared_answers import SharedAnswers
from forerun.web.warm_workers import WarmWorkers

PORT, ROUNDS, START_SECONDS, SETTLE_SECONDS = 8799, 5, 60.0, 15.0
GOALS = {
    "page": 0.5, "the same, kept": 0.5, "the same, new": 15.0, "each another, new": 15.0, "each another, nearby": 15.0,
}  # fmt: skip
"""Seconds in which 95 % are to be answered."""


def question(**sizes: int) -> dict[str, Any]:
    """A LoRA of LLaMA-2-7B."""
    asked = PageQuestion(**sizes)
    return {"kind": "forecast", "settings": asked.content(), "gpu": asked.gpu}


async def seconds_of(answers: SharedAnswers, questions: list[dict[str, Any]]) -> tuple[list[float], int]:
    """Seconds until each visitor has an answer, and how many got another's or none."""

    async def visit(asked: dict[str, Any]) -> tuple[float, bool]:
        start = time.perf_counter()
        answer = await answers.ask(asked, lambda line: None)
        seconds = time.perf_counter() - start
        is_own = answer.get("forecast", {}).get("settings_hash") == settings_from(asked["settings"]).hash
        return seconds, is_own

    rows = await asyncio.gather(*map(visit, questions))
    return [seconds for seconds, _ in rows], sum(not is_own for _, is_own in rows)


def page_seconds(visitors: int) -> list[float]:
    """Seconds of the page for each visitor and round."""
    command = [sys.executable, "-m", "forerun", "ui", "--public", "--port", str(PORT)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)

    def visit(_: int) -> float:
        start = time.perf_counter()
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/?batch=8", timeout=60) as page:
            page.read()
        return time.perf_counter() - start

    try:
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                visit(0)
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)
        time.sleep(SETTLE_SECONDS)  # its workers are importing
        with concurrent.futures.ThreadPoolExecutor(visitors) as pool:
            return [each for _ in range(ROUNDS) for each in pool.map(visit, range(visitors))]
    finally:
        server.terminate()
        server.wait()


async def measure(visitors: int) -> tuple[dict[str, list[float]], dict[str, float], int]:
    """Seconds of each visitor by what was asked, of what was done beforehand, and answers that were another's."""
    times, astray = {"page": page_seconds(visitors)}, 0
    Asker.warm, answers, start = WarmWorkers(), SharedAnswers(), time.perf_counter()
    await Asker.warm.start()
    spent = {"ready": time.perf_counter() - start}
    same, new = [question()] * visitors, [question(length=520 + 8 * number) for number in range(visitors)]
    nearby = [question(batch=5 + number, length=512 if number % 2 else 640) for number in range(visitors)]
    for name, asked in (
        ("the same, new", same), ("the same, kept", same), ("each another, new", new), ("each another, nearby", nearby)
    ):  # fmt: skip
        if name == "each another, nearby":
            begun = time.perf_counter()
            Asker.nearby.stop()
            await Asker.warm.ask({**question(), "kind": "nearby"}, lambda line: None)
            spent["tracing"] = time.perf_counter() - begun
        times[name], wrong = await seconds_of(answers, asked)
        astray += wrong
    Asker.nearby.stop()
    Asker.warm.stop()
    return times, spent, astray


def main() -> None:
    """Measure, print, exit 1 where a goal is missed or an answer went astray."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--visitors", type=int, default=20)
    visitors = parser.parse_args().visitors
    with leaving_nothing():
        times, spent, astray = asyncio.run(measure(visitors))
    print(f"{'visitors at once: ' + str(visitors):26} {'median s':>9} {'p95 s':>8} {'goal':>6}")
    shares = {name: np.quantile(each, [0.5, 0.95]).tolist() for name, each in times.items()}
    for name, (median, high) in shares.items():
        print(f"{name:26} {median:9.3f} {high:8.3f} {GOALS[name]:6}")
    print(f"answers that were not the visitor's own: {astray}")
    print(f"workers ready in {spent['ready']:.1f} s; sizes nearby traced in {spent['tracing']:.1f} s")
    load = os.getloadavg()[0]
    print(json.dumps({"benchmark": "ui_load", "version": 2, "visitors": visitors, "seconds": shares, "astray": astray,
                      "spent": spent, "load": load}))  # fmt: skip
    sys.exit(astray > 0 or any(high > GOALS[name] for name, (_, high) in shares.items()))


if __name__ == "__main__":
    main()
