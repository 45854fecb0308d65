"""The service with a detector that is written out: endpoints, refusals, equal answers alone and together, no leaks."""

import asyncio
import json
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from forerun.recipes.code_detector.service.app import ServiceLimits, make_app
from forerun.recipes.code_detector.service.scoring import Answer
from forerun.recipes.code_detector.service.store import PredictionStore
from forerun.recipes.code_detector.service.test_scoring import card

LONG = "def f(x):\n    return x + 1\n" * 20
SECRET = "SECRET_STUDENT_NAME"


class FakeDetector:
    """The probability is the share of the letter e; nothing else counts."""

    def __init__(self):
        self.card = card()
        self.calls = []

    def answer(self, questions):
        self.calls.append(len(questions))
        answers = []
        for question in questions:
            share = question.code.count("e") / max(1, len(question.code))
            vector = np.asarray([share, 1 - share], dtype=np.float32)
            answers.append(Answer(share, len(question.code.split()), (), vector / np.linalg.norm(vector)))
        return answers


@pytest.fixture
def detector():
    return FakeDetector()


@pytest.fixture
def client(detector):
    with TestClient(make_app(detector)) as client:
        yield client


def file(code=LONG, language="python", **more):
    return {"code": code, "language": language, **more}


def test_verdicts_come_with_what_they_do_not_prove(client, detector):
    flagged = client.post("/v1/detect", json=file("e(e)\n" * 300, name="one.py")).json()
    assert (flagged["verdict"], flagged["name"]) == ("worth-a-conversation", "one.py")
    assert flagged["statement"] == list(detector.card.full_statement)
    assert "at most 1.0%" in flagged["reason"]
    calm = client.post("/v1/detect", json=file("x(x)\n" * 300)).json()
    assert calm["verdict"] == "no-finding"
    assert "does not show that a person wrote it" in calm["reason"]
    for text in ("e" * 2000 + " e" * 20, str(list(range(300)))):
        other = client.post("/v1/detect", json=file(text)).json()
        assert (other["verdict"], other["probability"], other["windows"]) == ("not-code", None, [])
    small = client.post("/v1/detect", json=file("e")).json()
    assert (small["verdict"], small["probability"], small["windows"]) == ("not-enough-code", None, [])


def test_two_files_are_compared_with_lines(client):
    other = "# mine\n" + LONG.replace("x", "value")
    answer = client.post("/v1/similarity", json={"a": file(), "b": file(other)}).json()
    assert answer["comparison"]["syntax"]["score"] == 1.0
    spans = answer["comparison"]["evidence"]
    assert {span["tier"] for span in spans} == {"words", "syntax"}
    assert all(span["b_first_line"] == span["a_first_line"] + 1 for span in spans)
    assert -1 <= answer["embedding"] <= 1
    base = client.post("/v1/similarity", json={"a": file(), "b": file(other), "base": [file()]}).json()
    assert base["comparison"]["syntax"]["score"] == 0


def test_a_batch_has_verdicts_and_pairs(client):
    names = [f"s{n}.py" for n in range(4)]
    files = [file(LONG + f"y{n} = [{n}] * {n}\n" * n, name=name) for n, name in enumerate(names)]
    answer = client.post("/v1/batch", json={"files": files, "shown": 2}).json()
    assert [each["name"] for each in answer["files"]] == names
    assert len(answer["pairs"]) == 2
    assert client.post("/v1/batch", json={"files": files[:1]}).json()["pairs"] == []


def test_the_like_of_a_file_is_found(client):
    candidates = [file("import os\nprint(os.name)\n" * 9), file(LONG), file("x = 1")]
    matches = client.post("/v1/find-similar", json={"query": file(), "candidates": candidates, "shown": 2}).json()[
        "found"
    ]
    assert [each["index"] for each in matches] == [1, 0]
    assert matches[0]["comparison"]["words"]["score"] == 1.0


def test_status_and_document(client):
    status = client.get("/v1/status").json()
    assert (status["status"], status["keeps_code"], status["waiting"]) == ("ready", False, 0)
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {"/v1/status", "/v1/detect", "/v1/similarity", "/v1/batch", "/v1/find-similar", "/v1/feedback"}


@given(st.lists(st.text("xe \n", min_size=1, max_size=60), min_size=1, max_size=12))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_scores_alone_and_together_are_the_same(client, codes):
    alone = [client.post("/v1/detect", json=file(code)).json() for code in codes]
    together = client.post("/v1/batch", json={"files": [file(code) for code in codes]}).json()["files"]
    keys = ("verdict", "probability", "tokens", "reason")
    assert [[a[k] for k in keys] for a in alone] == [[t[k] for k in keys] for t in together]


def test_requests_at_the_same_time_share_a_call(detector):
    """While the model answers the first, the others gather."""
    gate, plain = threading.Event(), detector.answer

    def slow(questions):
        gate.wait(5)
        return plain(questions)

    detector.answer = slow
    with TestClient(make_app(detector, limits=ServiceLimits(batch=16))) as client:
        answers = []
        threads = [
            threading.Thread(target=lambda n=n: answers.append(client.post("/v1/detect", json=file("e" * n)).json()))
            for n in range(1, 13)
        ]
        for thread in threads:
            thread.start()
        gate.set()
        for thread in threads:
            thread.join()
    assert len(answers) == sum(detector.calls) == 12


BAD = {
    "other language": (file(language="rust"), 422),
    "no language": ({"code": "x"}, 422),
    "a number for code": ({"code": 7, "language": "python"}, 422),
    "a list": ([1, 2], 422),
    "more fields": (file(path="/etc/passwd"), 422),
    "long code": (file("x" * 100_001), 422),
    "long name": (file(name="n" * 201), 422),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_requests_are_explained_without_repeating_them(client, name):
    body, status = BAD[name]
    response = client.post("/v1/detect", json=body)
    assert response.status_code == status
    assert "/openapi.json" in response.json()["problem"]
    assert "/etc/passwd" not in response.text
    assert "xxx" not in response.text


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b'{"code": "\\ud800", "language": "python"}', b"null"]
)
def test_broken_bodies_are_no_bug_of_ours(client, body):
    response = client.post("/v1/detect", content=body, headers={"content-type": "application/json"})
    assert response.status_code in (200, 400, 422)
    json.loads(response.text)


def test_large_bodies_are_refused_before_they_are_read(detector):
    with TestClient(make_app(detector, limits=ServiceLimits(body_bytes=1000))) as client:
        assert client.post("/v1/detect", json=file("x" * 2000)).status_code == 413
        chunks = client.post("/v1/detect", content=(b"x" * 100 for _ in range(50)))
        assert chunks.status_code == 413
        assert "1,000 bytes" in chunks.json()["problem"]
        assert client.post("/v1/detect", json=file("x")).status_code == 200
    assert detector.calls == [1]


def test_a_token_is_asked_of_everybody_but_for_the_page(detector):
    with TestClient(make_app(detector, token="köy-1")) as client:
        assert client.get("/").status_code == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "köy-1".encode()}):
            refused = client.get("/v1/status", headers=headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
        assert client.get("/openapi.json").status_code == 401
        assert client.get("/v1/status", headers={"Authorization": "Bearer köy-1".encode()}).status_code == 200


def test_names_are_never_opened(client, tmp_path, monkeypatch):
    """A name that is a path comes back as it is; no file is opened while answering."""
    secret = tmp_path / "secret.py"
    secret.write_text(SECRET)
    open_calls = []
    client.post("/v1/similarity", json={"a": file(), "b": file()})  # loads grammars
    real = open

    def watching(path, *rest, **more):
        open_calls.append(str(path))
        return real(path, *rest, **more)

    monkeypatch.setattr("builtins.open", watching)
    monkeypatch.setattr("io.open", watching)
    for name in (str(secret), f"file://{secret}", "../../../etc/passwd"):
        body = file(name, name=name)
        for path, request in (
            ("detect", body),
            ("similarity", {"a": body, "b": body}),
            ("batch", {"files": [body, body]}),
        ):
            response = client.post(f"/v1/{path}", json=request)
            assert response.status_code == 200
            assert SECRET not in response.text
    assert not any("secret" in path or "passwd" in path for path in open_calls)


def test_a_full_queue_refuses_and_slow_work_is_given_up(detector):
    plain = detector.answer
    detector.answer = lambda questions: (threading.Event().wait(0.4), plain(questions))[1]
    with TestClient(make_app(detector, limits=ServiceLimits(queue=3, seconds=0.2))) as client:
        full = client.post("/v1/batch", json={"files": [file("e")] * 4})
        assert (full.status_code, full.headers["retry-after"]) == (429, "1")
        slow = client.post("/v1/detect", json=file("e"))
        assert slow.status_code == 503
        assert "longer than is allowed" in slow.json()["problem"]


def test_long_comparisons_give_their_thread_back(detector):
    """Forty files against one, with no time at all: refused, and the next request is answered."""
    with TestClient(make_app(detector, limits=ServiceLimits(seconds=0.02, comparing_threads=1))) as client:
        body = {"query": file(LONG * 20), "candidates": [file(LONG * 20)] * 40}
        assert client.post("/v1/find-similar", json=body).status_code == 503
        many = {"files": [file(LONG * 20)] * 40}
        assert client.post("/v1/batch", json=many).status_code == 503
        until = time.monotonic() + 60  # a machine that is busy needs several tries for one that is quick enough
        while time.monotonic() < until:
            if client.post("/v1/similarity", json={"a": file("x"), "b": file("x")}).status_code == 200:
                return
    raise AssertionError("the thread never came back")


def test_a_bug_tells_nothing(detector):
    def broken(questions):
        raise RuntimeError(SECRET)

    detector.answer = broken
    with TestClient(make_app(detector), raise_server_exceptions=False) as client:
        response = client.post("/v1/detect", json=file())
        assert response.status_code == 500
        assert SECRET not in response.text
        assert client.get("/v1/status").status_code == 200


def test_predictions_are_stored_without_their_code(detector, tmp_path):
    store = PredictionStore(f"sqlite:///{tmp_path}/p.sqlite")
    with TestClient(make_app(detector, store=store)) as client:
        answer = client.post("/v1/detect", json=file("e " * 50 + SECRET)).json()
        feedback = {"prediction_id": answer["prediction_id"], "outcome": "refuted"}
        assert client.post("/v1/feedback", json=feedback).json() == feedback
        assert client.post("/v1/feedback", json={**feedback, "outcome": "confirmed"}).status_code == 409
        unknown = client.post("/v1/feedback", json={"prediction_id": "nobody", "outcome": "refuted"})
        assert unknown.status_code == 404
    rows = store.predictions()
    assert [(row.id, row.outcome, row.code) for row in rows] == [(answer["prediction_id"], "refuted", None)]
    assert SECRET.encode() not in (tmp_path / "p.sqlite").read_bytes()


def test_answers_may_be_read_by_this_page_only(client):
    for path in ("/", "/page.js", "/page.css", "/v1/status", "/nowhere"):
        headers = client.get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
    page, script = client.get("/").text, client.get("/page.js").text
    assert not re.search(r"https?://", page + script)
    assert not re.search(r"innerHTML|eval\(|document\.write", script)


def test_no_module_of_the_service_unpickles():
    for path in Path(__file__).parent.glob("*.py"):
        if not path.name.startswith("test_"):
            assert not re.search(
                r"(import|from) pickle|pickle\.|torch\.load|marshal|shelve|(?<![.\w])(eval|exec)\(", path.read_text()
            ), path


def test_waiting_questions_end_with_the_service():
    from forerun.infer.batching import Batcher

    async def story():
        batcher = Batcher(lambda questions: [threading.Event().wait(0.2)] * len(questions), most=1)
        batcher.start()
        first = asyncio.create_task(batcher.ask([1]))
        await asyncio.sleep(0.02)
        second = asyncio.create_task(batcher.ask([2]))
        await asyncio.sleep(0.02)
        await batcher.stop()
        return await asyncio.wait_for(asyncio.gather(first, second, return_exceptions=True), 2)

    assert all(isinstance(each, asyncio.CancelledError) for each in asyncio.run(story()))
