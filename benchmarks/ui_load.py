"""Twenty people at once on the public pages: seconds of kept and of new answers, and of the page itself.

    python -m benchmarks.ui_load [--visitors 20]         a table and one JSON line

`page` is the HTML over HTTP from `forerun ui --public` on this machine, every visitor at once, five times. `kept` and
`new` are answers as the page gets them (`web/shared_answers.py`, with real workers and an empty cache): all visitors
ask the same 7B question that nobody asked before, then it again, then each one of their own. An answer whose settings
are not those that were asked is a cross-talk. Goals on a quiet machine of two cores: 95 % of kept answers in 500 ms,
of new ones in 15 s. Method version 1.
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
from forerun.web.question import PageQuestion
from forerun.web.shared_answers import SharedAnswers

PORT, ROUNDS, START_SECONDS = 8799, 5, 60.0
GOALS = {"page": 0.5, "the same, kept": 0.5, "the same, new": 15.0, "each another, new": 15.0}
"""Seconds in which 95 % are to be answered."""


def question(number: int) -> dict[str, Any]:
    """A LoRA of LLaMA-2-7B, of a length of its own."""
    asked = PageQuestion(length=512 + 8 * number)
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
        with concurrent.futures.ThreadPoolExecutor(visitors) as pool:
            return [each for _ in range(ROUNDS) for each in pool.map(visit, range(visitors))]
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    """Measure, print, exit 1 where a goal is missed or an answer went astray."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--visitors", type=int, default=20)
    visitors = parser.parse_args().visitors
    with leaving_nothing():
        answers, times, astray = SharedAnswers(), {"page": page_seconds(visitors)}, 0

        async def ask() -> None:
            nonlocal astray
            same, own = [question(0)] * visitors, [question(1 + number) for number in range(visitors)]
            for name, asked in (("the same, new", same), ("the same, kept", same), ("each another, new", own)):
                times[name], wrong = await seconds_of(answers, asked)
                astray += wrong

        asyncio.run(ask())
    print(f"{'visitors at once: ' + str(visitors):26} {'median s':>9} {'p95 s':>8} {'goal':>6}")
    shares = {name: np.quantile(each, [0.5, 0.95]).tolist() for name, each in times.items()}
    for name, (median, high) in shares.items():
        print(f"{name:26} {median:9.3f} {high:8.3f} {GOALS[name]:6}")
    print(f"answers that were not the visitor's own: {astray}")
    load = os.getloadavg()[0]
    print(json.dumps({"benchmark": "ui_load", "version": 1, "visitors": visitors, "seconds": shares, "astray": astray,
                      "load": load}))  # fmt: skip
    sys.exit(astray > 0 or any(high > GOALS[name] for name, (_, high) in shares.items()))


if __name__ == "__main__":
    main()
