"""A receiver on loopback that knows keys, as the draft says: the first answer again, 409 while it is busy, 422 for other content."""

# ruff: noqa: D102, D103 - the doubles of a test say what they do by their names
from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import http_sf
import pytest


class Shop:
    """What the server knows, and what is to happen.

    Args:
        applied: Each order that was carried out.
        seen: Each request: its key as it was sent, and its body.
        busy: So many requests find that the first one with their key is in progress.
        after: Called once when an order was carried out, before it is answered.
    """

    def __init__(self) -> None:
        self.url = ""
        self.applied: list[object] = []
        self.seen: list[tuple[str | None, bytes]] = []
        self.busy = 0
        self.after: Callable[[bytes], None] | None = None
        self._known: dict[str, tuple[bytes, bytes]] = {}
        self._lock = threading.Lock()

    def order(self, header: str | None, body: bytes) -> tuple[int, bytes]:
        with self._lock:
            self.seen.append((header, body))
            if header is None:
                return 400, b'{"title": "a key is needed"}'
            key, _ = http_sf.parse(header.encode(), tltype="item")
            assert type(key) is str
            if self.busy:
                self.busy -= 1
                return 409, b'{"title": "in progress"}'
            if key in self._known:
                content, answer = self._known[key]
                if content != body:
                    return 422, b'{"title": "the key is used"}'
                return 201, answer
            order = json.loads(body)
            if order.get("amount", 1) < 1:
                return 400, b'{"title": "amount must be positive"}'
            self.applied.append(order)
            answer = json.dumps({"order": len(self.applied)}).encode()
            self._known[key] = (body, answer)
            after, self.after = self.after, None
        if after is not None:
            after(body)
        return 201, answer


@pytest.fixture
def shop() -> Iterator[Shop]:
    own = Shop()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, answer = own.order(self.headers.get("Idempotency-Key"), body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.send_header("Content-Type", "application/json")
            if status == 409:
                self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):  # the client was killed
                super().handle()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    own.url = f"http://127.0.0.1:{server.server_port}/orders"
    yield own
    server.shutdown()
    thread.join()
    server.server_close()
