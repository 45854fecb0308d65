"""Only pages of this machine are answered, by http and by websocket."""

import asyncio

import pytest

from forerun.web.gate import MOST_BYTES, PageGate


def answers(kind, headers, hosts=()):
    """What the gate sends, and whether it passed the request on."""
    sent, passed = [], []

    async def app(scope, receive, send):
        passed.append(scope)

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "headers": [(name.encode(), value.encode()) for name, value in headers.items()]}
    asyncio.run(PageGate(app, hosts)(scope, None, send))
    return sent, bool(passed)


@pytest.mark.parametrize(
    ("length", "parts", "status"),
    [
        (b"99999999", [], 413),
        (b"many", [], 400),
        (None, [b"x" * MOST_BYTES, b"x"], 413),
        (None, [b"half"], 408),
        (None, [b"half", b""], 200),
    ],
)
def test_a_body_has_a_size_and_a_deadline(length, parts, status):
    sent, left = [], list(parts)

    async def app(scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive():
        if not left:
            await asyncio.sleep(60)
        body = left.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(body)}

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), *([(b"content-length", length)] if length else [])]
    asyncio.run(PageGate(app, read_seconds=0.05)({"type": "http", "headers": headers}, receive, send))
    assert sent[0]["status"] == status


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({"host": "127.0.0.1:8765"}, True),
        ({"host": "[::1]:8765", "origin": "http://[::1]:8765"}, True),
        ({"host": "localhost:8765", "origin": "http://localhost:8765"}, True),
        ({"host": "evil.example"}, False),
        ({"host": "127.0.0.1.evil.example:8765"}, False),
        ({"host": "localhost:8765", "origin": "https://evil.example"}, False),
        ({"host": "localhost:8765", "origin": "http://localhost:3000"}, False),
        ({"host": "localhost:8765", "origin": "null"}, False),
        ({}, False),
    ],
)
def test_names_and_origins(kind, headers, passes):
    sent, passed = answers(kind, headers)
    assert passed == passes
    if not passes:
        assert sent[0] == {"type": "websocket.close", "code": 1008} if kind == "websocket" else sent[0]["status"] == 403


def test_a_name_can_be_added():
    assert answers("http", {"host": "box.lan:80"}, hosts=["box.lan"])[1]
