"""Connections that never ask anything are dropped, and one address cannot take them all."""

import contextlib
import socket
import threading
import time

import pytest
import uvicorn

from forerun.errors import InvalidSettings
from forerun.infer import listener
from forerun.infer.gate import Gate


class QuickConnection(listener.LimitedConnection):
    head_seconds = 0.3


async def hello(scope, receive, send):
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        message = await receive()
        await send({"type": "websocket.send", "text": message["text"]})
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


@pytest.fixture(scope="module")
def address():
    app = Gate(hello, most_bytes=1000, hosts=("127.0.0.1",), read_seconds=0.3)
    server = uvicorn.Server(uvicorn.Config(app, port=0, http=QuickConnection, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()
    server.should_exit = True
    thread.join(5)


def closes(connection, seconds=3.0):
    """What the service says before it closes the connection."""
    connection.settimeout(seconds)
    content = b""
    with connection:
        while chunk := connection.recv(4096):
            content += chunk
    return content


def test_half_requests_are_dropped(address):
    halves = [b"", b"GET", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n",
              b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nhalf"]  # fmt: skip
    connections = [socket.create_connection(address) for _ in range(15) for _ in halves]
    for connection, half in zip(connections, halves * 15, strict=True):
        connection.sendall(half)
    answers = [closes(connection) for connection in connections]
    assert all(answer.startswith(b"HTTP/1.1 408") for answer in answers), set(answers)


def test_a_second_request_that_stops_half_way_is_dropped(address):
    connection = socket.create_connection(address)
    connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    connection.sendall(b"GET / HTTP/1.1\r\nHost: 127")
    assert b"HTTP/1.1 408" in closes(connection)


def test_a_request_that_drips_is_not_waited_for(address):
    with socket.create_connection(address) as connection:
        start = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - start < 3:
                connection.sendall(b"X")
                time.sleep(0.05)
    assert time.monotonic() - start < 2


def test_a_websocket_may_be_silent(address):
    pytest.importorskip("wsproto")
    key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    with socket.create_connection(address) as connection:
        connection.settimeout(3)
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" + key)
        connection.sendall(b"\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 101")
        time.sleep(3 * QuickConnection.head_seconds)
        connection.sendall(b"\x81\x82\0\0\0\0hi")  # text of two bytes, masked with zeros
        assert connection.recv(4096).endswith(b"hi")


def test_one_address_has_so_many_connections(address):
    connections = [socket.create_connection(address) for _ in range(listener.MOST_CONNECTIONS + 5)]
    refused = 0
    for connection in reversed(connections):  # the last to come, while all before them are still held
        try:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            refused += b"200" not in closes(connection)
        except OSError:
            refused += 1
    assert 1 <= refused <= 5


def test_a_body_that_is_too_large_gets_its_answer_and_no_reset(address):
    connection = socket.create_connection(address)
    connection.sendall(b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 8000\r\nConnection: close\r\n\r\n")
    time.sleep(0.1)  # the head alone is enough to refuse by
    connection.sendall(b"x" * 8000)
    assert closes(connection).startswith(b"HTTP/1.1 413")


def test_a_port_of_another_program_is_refused_with_a_way_out():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InvalidSettings, match=rf"{port} of 127.0.0.1 belongs to another program.*another port; 0"):
            listener.reserve_port("127.0.0.1", port)
    with pytest.raises(InvalidSettings, match=r"found '203\.0\.113\.9'.*Name 127\.0\.0\.1"):  # RFC 5737: nobody's
        listener.reserve_port("203.0.113.9", 0)


def test_a_free_port_is_announced_by_its_number(capsys):
    sockets = listener.reserve_port("localhost", 0)
    port = sockets[0].getsockname()[1]
    listener.announce("tiny", "localhost", sockets, "/v1/models")
    for each in sockets:
        each.close()
    assert {each for each in capsys.readouterr().out.split() if "models" in each} == {
        f"http://localhost:{port}/v1/models;"
    }
    assert port > 0


def test_a_reserved_port_is_served_once_it_listens(monkeypatch):
    servers = []
    server_class = listener.uvicorn.Server

    def server_of(config):
        servers.append(server_class(config))
        return servers[-1]

    monkeypatch.setattr(listener.uvicorn, "Server", server_of)
    sockets = listener.reserve_port("127.0.0.1", 0)
    address = sockets[0].getsockname()
    with pytest.raises(ConnectionRefusedError):  # a client that waits for the service sees that it is not there yet
        socket.create_connection(address)
    thread = threading.Thread(target=listener.listen, args=(hello, sockets), daemon=True)
    thread.start()
    while not (servers and servers[0].started):
        time.sleep(0.01)
    with socket.create_connection(address) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    servers[0].should_exit = True
    thread.join(5)
    assert not thread.is_alive()
