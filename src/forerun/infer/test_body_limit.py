"""Half a body is given up, a large one is not collected, and an answer that was begun is not replaced."""

import asyncio

import pytest

from forerun.infer.body_limit import answer_within, length_problem


def run(parts, *, answers_first=False):
    """What was sent, and what is wrong with a body that comes in `parts` and then no more."""
    sent, left = [], list(parts)

    async def app(scope, receive, send):
        if answers_first:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive():
        if not left:
            await asyncio.sleep(60)
        body = left.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(body)}

    async def send(message):
        sent.append(message["status"])

    return sent, asyncio.run(answer_within(app, {}, receive, send, most_bytes=10, read_seconds=0.05))


def test_a_whole_body_is_read():
    assert run([b"half", b""]) == ([200], None)


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([b"half"], (408, "The body must come within 0.05 seconds.")),
        ([b"123456", b"78901"], (413, "The body may have 10 bytes. Send fewer or smaller files.")),
    ],
)
def test_half_a_body_and_a_large_one_are_refused(parts, problem):
    assert run(parts) == ([], problem)
    assert run(parts, answers_first=True) == ([200], None)


def test_an_announced_length_is_looked_at():
    assert length_problem({}, 10) is None
    assert length_problem({b"content-length": b"10"}, 10) is None
    for length, status in ((b"11", 413), (b"9" * 5000, 413), (b"-1", 400), (b"ten", 400)):
        problem = length_problem({b"content-length": length}, 10)
        assert problem is not None
        assert problem[0] == status
