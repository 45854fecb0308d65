"""Forked workers answer one question each, know nothing of each other, and end when nobody waits."""

import asyncio
import os
import signal
import time

import pytest

from forerun.web import asking
from forerun.web.asking import Asker, answer_of
from forerun.web.question import PageQuestion
from forerun.web.warm_workers import SERVER as REAL
from forerun.web.warm_workers import WarmWorkers

pytestmark = pytest.mark.medium
SERVER = """
import os, sys, time
import forerun.cli.ui_fork_server as server

answered = []

def answer(question):
    answered.append(question)
    print(os.getpid(), file=sys.stderr, flush=True)
    if question["kind"] == "slow":
        time.sleep(60)
    if question["kind"] == "killed":
        os.kill(os.getpid(), 9)
    if question["kind"] == "broken":
        raise ValueError("no such thing")
    return {"is": question["kind"], "number": len(answered), "length": len(question.get("text", ""))}

server.MODULES, server.answer_or_error = ("json",), answer
server.main()
"""
"""The process that forks as it is, but for what it imports and answers."""


def in_loop(story, server=("-c", SERVER)):
    """Run `story` with warm workers."""

    async def told():
        Asker.warm = workers = WarmWorkers(server)
        try:
            await workers.start()
            await asyncio.wait_for(story(workers), 120)
        finally:
            workers.stop()
            Asker.warm = None
            await workers._process.wait()

    asyncio.run(told())


@pytest.fixture(autouse=True)
def gate(monkeypatch):
    monkeypatch.setattr(Asker, "gate", asyncio.Semaphore(asking.AT_ONCE))


async def started(kind, lines):
    task = asyncio.create_task(answer_of({"kind": kind}, lines.append))
    while not lines:
        await asyncio.sleep(0.01)
    return task


def is_there(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


async def gone(process):
    end = time.monotonic() + 10
    while is_there(process) and time.monotonic() < end:
        await asyncio.sleep(0.02)
    return not is_there(process)


def test_each_question_has_a_process_of_its_own_that_has_answered_nothing_before():
    async def story(workers):
        lines = []
        questions = [{"kind": str(n), "text": "x" * 200_000} for n in range(5)]
        answers = await asyncio.gather(*(answer_of(question, lines.append) for question in questions))
        assert answers == [{"is": str(n), "number": 1, "length": 200_000} for n in range(5)]
        assert len(set(lines)) == 5
        assert [await gone(int(line)) for line in lines] == [True] * 5

    in_loop(story)


def test_who_is_cancelled_or_too_slow_is_ended():
    async def story(workers):
        lines = []
        (await started("slow", lines)).cancel()
        assert await gone(int(lines[0]))
        answer = await answer_of({"kind": "slow"}, lines.append, limit_seconds=0.3)
        assert "No answer within" in answer["error"]
        assert await gone(int(lines[-1]))

    in_loop(story)


def test_who_ends_without_an_answer_says_so():
    async def story(workers):
        assert "code -9" in (await answer_of({"kind": "killed"}, lambda line: None))["error"]
        assert "code 1: ValueError: no such thing" in (await answer_of({"kind": "broken"}, lambda line: None))["error"]
        assert (await answer_of({"kind": "after"}, lambda line: None))["is"] == "after"

    in_loop(story)


def test_workers_end_with_the_pages():
    async def story(workers):
        lines = []
        task = await started("slow", lines)
        workers.stop()
        assert await workers._process.wait() == 0
        assert await gone(int(lines[0]))
        assert "error" in await task

    in_loop(story)


def test_where_the_process_that_forks_is_gone_a_fresh_one_answers_and_it_comes_back():
    async def story(workers):
        os.kill(workers._process.pid, signal.SIGKILL)
        await workers._process.wait()
        answer = await answer_of({"kind": "forecast", "settings": {"name": 3}, "gpu": "t4"}, lambda line: None)
        assert "workload" in answer["error"], "of the settings: from a real worker"
        while not workers.is_ready:
            await asyncio.sleep(0.05)
        assert (await answer_of({"kind": "again"}, lambda line: None))["number"] == 1

    in_loop(story)


def test_sizes_nearby_are_traced_while_nobody_waits():
    """A forecast begins it, the next question ends it."""

    async def story(workers):
        traced = []
        ask = workers.ask

        async def watched(question, on_progress):
            if question["kind"] == "nearby":
                on_progress = traced.append
                question = {**question, "kind": "slow"}
            return await ask(question, on_progress)

        workers.ask = watched
        await answer_of({"kind": "changes"}, lambda line: None)
        assert Asker.nearby._task is None, "only after a forecast"
        await answer_of({"kind": "forecast"}, lambda line: None)
        while not traced:
            await asyncio.sleep(0.01)
        assert is_there(int(traced[0]))
        await answer_of({"kind": "changes"}, lambda line: None)
        assert await gone(int(traced[0]))
        await answer_of({"kind": "forecast"}, lambda line: None)
        while len(traced) < 2:
            await asyncio.sleep(0.01)
        Asker.nearby.stop()
        assert await gone(int(traced[1]))

    in_loop(story)


def test_a_fork_answers_what_a_fresh_process_answers(monkeypatch, tmp_path):
    monkeypatch.setenv("FORERUN_TRACES", "off")
    monkeypatch.setenv("FORERUN_LEDGER", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    questions = [
        {"kind": "forecast", "settings": PageQuestion(model="tiny-llama", **more).content(), "gpu": "a100-40gb"}
        for more in ({}, {"method": "qlora"}, {"checkpointing": "blocks", "accumulation": 2, "length": 100})
    ]

    async def story(workers):
        forked = [await answer_of(question, lambda line: None) for question in [*questions, questions[0]]]
        Asker.nearby.stop()
        workers.is_ready = False
        fresh = [await answer_of(question, lambda line: None) for question in questions]
        assert "forecast" in fresh[0]
        assert forked == [*fresh, fresh[0]]

    in_loop(story, REAL)
