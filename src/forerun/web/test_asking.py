"""A page's newest question wins, and whoever cancels ends the process too."""

import asyncio
import sys

import pytest

from forerun.web import asking
from forerun.web.asking import Asker, answer_of

WORKER = """
import json, sys, time
question = json.load(sys.stdin)
print("working", file=sys.stderr, flush=True)
if question["kind"] == "slow":
    time.sleep(60)
if question["kind"] == "broken":
    raise SystemExit(3)
print(json.dumps({"is": question["kind"]}))
"""


@pytest.fixture(autouse=True)
def worker(monkeypatch):
    """Another program in place of the worker, which would trace; everything else as it is."""
    start, processes = asyncio.create_subprocess_exec, []

    async def other(*command, **options):
        processes.append(await start(sys.executable, "-c", WORKER, **options))
        return processes[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", other)
    monkeypatch.setattr(Asker, "gate", asyncio.Semaphore(asking.AT_ONCE))
    return processes


def test_the_newest_question_is_answered_and_the_other_ended(worker):
    async def two():
        asker, lines = Asker(), []
        first = asyncio.create_task(asker.ask({"kind": "slow"}, lines.append))
        while not lines:
            await asyncio.sleep(0.01)
        second = await asker.ask({"kind": "quick"}, lines.append)
        answers = await first, second
        await worker[0].wait()
        return answers, lines

    answers, lines = asyncio.run(two())
    assert answers == (None, {"is": "quick"})
    assert lines == ["working", "working"]
    assert worker[0].returncode < 0


def test_a_worker_that_ends_without_an_answer_is_an_error():
    assert "code 3: working" in asyncio.run(answer_of({"kind": "broken"}, lambda line: None))["error"]
