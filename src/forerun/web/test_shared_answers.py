"""Many visitors of one host: what is kept, who waits, and who is turned away."""

import asyncio

import pytest

from forerun.errors import InvalidSettings
from forerun.web import shared_answers
from forerun.web.shared_answers import BUSY, SharedAnswers, require_public_model


class Worker:
    """Answers when it is told to; counts what it was asked."""

    def __init__(self):
        self.asked, self.ended, self.go = [], [], asyncio.Event()

    async def __call__(self, question, on_progress, *, limit_seconds):
        self.asked.append(question)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.ended.append(question["kind"])
            raise
        return {"error": "no"} if question["kind"] == "wrong" else {"is": question["kind"], "text": "x" * 100}


def in_loop(story):
    async def told():
        worker = Worker()
        await story(worker, SharedAnswers(worker))

    asyncio.run(told())


async def started(answers, *kinds, lines=None):
    tasks = [asyncio.create_task(answers.ask({"kind": kind}, (lines or []).append)) for kind in kinds]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


def test_one_question_of_many_visitors_is_asked_once_and_its_answer_kept():
    async def story(worker, answers):
        tasks = await started(answers, "a", "a", "a")
        worker.go.set()
        assert [answer["is"] for answer in await asyncio.gather(*tasks)] == ["a"] * 3
        (later,) = await started(answers, "a")
        assert (await later)["is"] == "a"
        assert len(worker.asked) == 1
        assert worker.asked[0]["memory_bytes"] == shared_answers.WORKER_BYTES

    in_loop(story)


def test_an_error_is_asked_again():
    async def story(worker, answers):
        worker.go.set()
        for _ in range(2):
            (task,) = await started(answers, "wrong")
            assert await task == {"error": "no"}
        assert len(worker.asked) == 2

    in_loop(story)


def test_a_question_ends_with_its_last_visitor():
    async def story(worker, answers):
        first, second = await started(answers, "a", "a")
        first.cancel()
        await asyncio.sleep(0)
        assert worker.ended == []
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        await asyncio.sleep(0)
        assert worker.ended == ["a"]

    in_loop(story)


def test_the_queue_has_an_end_and_says_who_is_before(monkeypatch):
    async def story(worker, answers):
        lines = []
        await started(answers, "a", "b", "c", lines=lines)
        assert lines == []
        tasks = [asyncio.create_task(answers.ask({"kind": "d"}, lines.append))]
        await asyncio.sleep(0)
        assert lines == ["2 questions before yours"]
        assert await answers.ask({"kind": "e"}, lines.append) == BUSY
        worker.go.set()
        assert (await tasks[0])["is"] == "d"

    monkeypatch.setattr(shared_answers, "MOST_WAITING", 4)
    in_loop(story)


def test_kept_answers_take_bounded_memory(monkeypatch):
    async def story(worker, answers):
        worker.go.set()
        for kind in ("a", "b", "c", "a"):
            (task,) = await started(answers, kind)
            await task
        assert [each["kind"] for each in worker.asked] == ["a", "b", "c", "a"], "the oldest had left"

    monkeypatch.setattr(shared_answers, "MOST_KEPT_BYTES", 300)
    in_loop(story)


@pytest.mark.parametrize("name", ["llama-2-7b", "owner/name", "owner/name@v1.0"])
def test_models_of_the_catalogue_and_the_hub_are_public(name):
    require_public_model(name)


@pytest.mark.parametrize("name", ["/etc", "../secret", "a/b/c", "src/forerun", "~", "file:///etc"])
def test_files_of_this_machine_are_not(name, monkeypatch, tmp_path):
    (tmp_path / "src/forerun").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidSettings, match="catalogue, or owner/name"):
        require_public_model(name)
