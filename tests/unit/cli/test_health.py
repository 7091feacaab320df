"""`--health`: two paths, from a thread of its own, and nothing that was sent comes back."""

import asyncio
import http.client
import json
import socket
from urllib.parse import urlsplit

import pytest
import typer
from msgspec.structs import replace

from outlast.cli.health import HealthServer, Place, health_place
from outlast.errors import DefinitionError
from outlast.store.change import WorkerId
from outlast.worker.vital import Vitals

WELL = Vitals(WorkerId("w"), "b1", "1.0", True, 0.1, 14.0, 0.2, 3, 0)


@pytest.fixture
def server():
    """Serve the vitals that `told` holds."""
    told = [WELL]
    server = HealthServer(Place("127.0.0.1", 0), lambda: told[0])
    server.told = told
    yield server
    server.close()


def ask(server, path, method="GET"):
    """Return status, headers and body."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def raw(server, data):
    """Send bytes as they are, and return all that comes."""
    place = urlsplit(server.url)
    with socket.create_connection((place.hostname, place.port), timeout=10) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        parts = []
        while part := connection.recv(4096):
            parts.append(part)
    return b"".join(parts)


def test_well(server):
    """Both paths say 200, with the worker's numbers."""
    for path in ("/livez", "/readyz", "/readyz?verbose"):
        status, headers, body = ask(server, path)
        assert status == 200
        assert headers["Content-Type"] == "application/json"
        assert headers["Cache-Control"] == "no-store"
        assert json.loads(body) == {
            "status": "ok", "reasons": [], "worker": "w", "build": "b1", "library": "1.0",
            "lease_seconds_left": 14.0, "still_seconds": 0.1, "looked_seconds": 0.2, "runs": 3, "tasks": 0,
        }  # fmt: skip


def test_unwell(server):
    """503 with the reason; a worker that does not accept is alive."""
    server.told[0] = replace(WELL, is_accepting=False)
    status, _, body = ask(server, "/readyz")
    assert status == 503
    assert json.loads(body)["reasons"] == [
        "no run is taken up: it starts, stops or begins a new life"
    ]
    assert ask(server, "/livez")[0] == 200


def test_it_answers_while_the_event_loop_stands_still(server):
    """The question is asked from the loop itself, which turns no more meanwhile."""

    async def hang():
        server.told[0] = replace(WELL, still_seconds=99.0)
        return ask(server, "/livez")

    status, _, body = asyncio.run(hang())
    assert status == 503
    assert "the event loop stands still" in json.loads(body)["reasons"]


def test_nothing_else_is_answered_and_nothing_comes_back(server):
    """Other paths, methods and bytes get a status and no body."""
    assert ask(server, "/nope-SENT")[0] == 404
    assert ask(server, "/livez", "POST")[0] == 405
    assert ask(server, "/livez", "HEAD")[2] == b""
    for data in (
        b"GET /livez HTTP/9.9-SENT\r\n\r\n",
        b"SENT\r\n\r\n",
        b"GET /\x00SENT HTTP/1.1\r\n\r\n",
        b"GET http://SENT/livez HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1 SENT\r\n\r\n",
        b"GET /" + b"SENT" * 5000 + b" HTTP/1.1\r\n\r\n",
        b"",
    ):
        got = raw(server, data[:8192])
        assert got.startswith(b"HTTP/1.1 400 "), data[:40]
        assert b"SENT" not in got
        assert got.endswith(b"\r\n\r\n")
    assert ask(server, "/livez")[0] == 200


def test_those_who_say_nothing_hold_few_places(server):
    """Eight connections are read at once; one more is closed, and served when one of them has ended."""
    place = urlsplit(server.url)
    idle = [socket.create_connection((place.hostname, place.port)) for _ in range(8)]
    try:
        with socket.create_connection((place.hostname, place.port), timeout=10) as more:
            assert more.recv(1) == b""
    finally:
        for one in idle:
            one.close()
    for _ in range(1000):
        try:
            assert ask(server, "/livez")[0] == 200
            break
        except (http.client.HTTPException, OSError):
            continue
    else:
        raise AssertionError("no place became free")


def test_closed(server):
    """Closed, it listens no more; closing again is no error."""
    server.close()
    server.close()
    with pytest.raises(OSError):
        ask(server, "/livez")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("8080", ("127.0.0.1", 8080)),
        (":8080", ("127.0.0.1", 8080)),
        (" 0.0.0.0:0 ", ("0.0.0.0", 0)),
        ("localhost:1", ("localhost", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_places(text, place):
    """A port is one of this machine alone, unless a host is named."""
    assert health_place(text) == Place(*place)


@pytest.mark.parametrize("text", ["", "x", "1:2:3", "65536", "::1", "a b:1", "-1", "8080/x"])
def test_no_places(text):
    """What is none is typed wrong."""
    with pytest.raises(typer.BadParameter, match="no place for --health"):
        health_place(text)


def test_taken_port(server):
    """A port that somebody has is said, with what to do."""
    port = urlsplit(server.url).port
    with pytest.raises(DefinitionError, match=f"cannot listen on 127.0.0.1 port {port}") as caught:
        HealthServer(Place("127.0.0.1", port), lambda: WELL)
    assert "another port" in caught.value.hint
