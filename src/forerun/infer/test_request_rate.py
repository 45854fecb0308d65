"""One client's rate is bounded, nobody else pays for it, and memory is bounded too; the clock is a fake."""

import asyncio

import pytest

from forerun.infer import request_rate
from forerun.infer.gate import Gate
from forerun.infer.request_rate import RequestRate, client_of, rate_of
from forerun.web.gate import PageGate


class FakeClock:
    now = 100.0

    def __call__(self):
        return self.now


def test_a_bucket_empties_and_fills_again():
    clock = FakeClock()
    rate = RequestRate(per_second=2, burst=3, clock=clock)
    assert [rate.wait_seconds("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert rate.wait_seconds("b") == 0, "another client has a bucket of its own"
    clock.now += 0.25
    assert rate.wait_seconds("a") == 0.25
    clock.now += 0.25
    assert [rate.wait_seconds("a") for _ in range(2)] == [0, 0.5]
    clock.now += 1000
    assert [rate.wait_seconds("a") > 0 for _ in range(4)] == [False, False, False, True], "never more than the burst"
    clock.now -= 500  # a clock that jumps gives nothing and takes nothing
    assert rate.wait_seconds("a") == 0.5


def test_over_a_long_time_a_client_gets_its_rate():
    clock = FakeClock()
    rate = RequestRate(per_second=5, burst=10, clock=clock)
    answered = 0
    for _ in range(10_000):
        answered += rate.wait_seconds("a") == 0
        clock.now += 0.01
    assert answered == pytest.approx(10 + 5 * 100, abs=1)


def test_addresses_are_forgotten(monkeypatch):
    monkeypatch.setattr(request_rate, "MOST_CLIENTS", 50)
    rate = RequestRate(per_second=1, burst=1, clock=FakeClock())
    for number in range(500):
        rate.wait_seconds(str(number))
    assert len(rate._buckets) == 50
    assert rate.wait_seconds("499") > 0


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2"),
        ("2001:db8:1:2::7", "2001:db8:1:2"),
    ],
)
def test_clients(address, client):
    assert client_of({"client": (address, 1)}) == client
    assert client_of({"client": None}) == ""


def test_no_rate():
    assert rate_of(0) is None


@pytest.mark.parametrize(
    "make_gate", [lambda app, rate: Gate(app, 1000, token="t", rate=rate), lambda app, rate: PageGate(app, rate=rate)]
)
def test_a_gate_says_when_to_come_again(make_gate):
    sent, passed = [], []

    async def app(scope, receive, send):
        passed.append(scope)

    async def send(message):
        sent.append(message)

    gate = make_gate(app, RequestRate(per_second=0.1, burst=2, clock=FakeClock()))
    headers = [(b"host", b"127.0.0.1"), (b"authorization", b"Bearer t")]
    scope = {"type": "http", "path": "/x", "headers": headers, "client": ("127.0.0.1", 1)}
    for _ in range(3):
        asyncio.run(gate(scope, None, send))
    assert len(passed) == 2
    assert sent[0]["status"] == 429
    assert dict(sent[0]["headers"])[b"retry-after"] == b"10"
    assert b"10 s" in sent[1]["body"]
    asyncio.run(gate({**scope, "client": ("127.0.0.2", 1)}, None, send))
    assert len(passed) == 3
