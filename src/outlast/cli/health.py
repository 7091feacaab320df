"""The health of a worker over HTTP, from threads of its own: it answers also while the event loop stands still.

It reads one request of a few kilobytes within two seconds, of a few connections at a time, and answers with one of two paths' JSON or with
nothing but a status. Nothing that was sent comes back, and nothing of a run is told but how many there are.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable

import msgspec
from msgspec import Struct

from outlast.cli.session import usage_error
from outlast.errors import DefinitionError
from outlast.worker.vital import Vitals, livez, readyz

_LARGEST_BYTES = 8192
_SECONDS = 2.0
_AT_ONCE = 8
_REQUEST = re.compile(rb"([A-Z]{1,16}) (/[!-~]{0,1024}) HTTP/1\.[01]\r?\n")
_PLACE = re.compile(r"(?:(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]*):)?([0-9]{1,5})")
_LAST_PORT = 65535
_LINES = {
    200: "200 OK",
    400: "400 Bad Request",
    404: "404 Not Found",
    405: "405 Method Not Allowed\r\nAllow: GET, HEAD",
    503: "503 Service Unavailable",
}


class Place(Struct, frozen=True):
    """Where to listen.

    Args:
        port: 0 for any that is free.
    """

    host: str
    port: int


def health_place(text: str) -> Place:
    """Return host and port that were typed: `8080`, `:8080`, `0.0.0.0:8080`, `[::1]:8080`; to be used as an option's parser."""
    found = _PLACE.fullmatch(text.strip())
    if found is None or int(found[2]) > _LAST_PORT:
        raise usage_error(
            f"{text[:100]!r} is no place for --health; write a port, as 8080, or HOST:PORT"
        )
    return Place((found[1] or "127.0.0.1").strip("[]"), int(found[2]))


class HealthServer:
    """Answers until it is closed.

    Args:
        vitals: Asked for each answer, from another thread.

    Raises:
        DefinitionError: It cannot listen there.
    """

    def __init__(self, place: Place, vitals: Callable[[], Vitals]) -> None:
        host, port = place.host, place.port
        self._vitals = vitals
        self._room = threading.Semaphore(_AT_ONCE)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or "it is no host"
            raise DefinitionError(
                f"--health cannot listen on {host} port {port}: {why}",
                hint="choose another port, or a host of this machine",
            ) from None
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}/readyz"
        """Of one of the two."""
        threading.Thread(target=self._accept, name="outlast-health", daemon=True).start()

    def close(self) -> None:
        """Answer no more."""
        with contextlib.suppress(OSError):
            # What waits in `accept` is not woken by `close` alone.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._socket.fileno() < 0:
                    return
                # No descriptor is free, or the caller has gone: the next one is served.
                time.sleep(0.05)
                continue
            if not self._room.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(
                target=self._serve, args=(connection,), name="outlast-health", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError):
                connection.sendall(self._answer(_request_in(connection)))
                connection.shutdown(socket.SHUT_WR)
        finally:
            self._room.release()

    def _answer(self, request: bytes) -> bytes:
        found = _REQUEST.match(request)
        if found is None:
            return _response(400)
        method, target = found[1], found[2].partition(b"?")[0]
        judge = {b"/livez": livez, b"/readyz": readyz}.get(target)
        if judge is None:
            return _response(404)
        if method not in {b"GET", b"HEAD"}:
            return _response(405)
        health = judge(self._vitals())
        body = msgspec.json.encode(health)
        return _response(200 if health.is_ok else 503, body, with_body=method == b"GET")


def _request_in(connection: socket.socket) -> bytes:
    """Return what was sent up to the end of its head, or up to what is read at most."""
    until = time.monotonic() + _SECONDS
    read = b""
    while len(read) < _LARGEST_BYTES and b"\r\n\r\n" not in read and b"\n\n" not in read:
        connection.settimeout(max(0.001, until - time.monotonic()))
        more = connection.recv(_LARGEST_BYTES - len(read))
        if not more:
            break
        read += more
    return read


def _response(status: int, body: bytes = b"", *, with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {_LINES[status]}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + (body if with_body else b"")
