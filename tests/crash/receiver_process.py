"""A receiver in a process of its own: it counts what was applied under each key, and is unkind, as a seed says.

Each request names the process that sends it. The receiver may cut the connection before it acts or after, kill the sender before it acts
or after, or be asked twice by one request, as by a network that repeats it. With the third unkindness to one key it has had enough.

    python receiver_process.py SEED     prints its port; GET /books tells what it has counted
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FATES = ("drop before", "drop after", "kill before", "kill after", "twice", "", "")
MOST = 2
"""So often one key is treated unkindly: then its effect comes to an end."""


class Books:
    """What happened."""

    def __init__(self, seed: int) -> None:
        self.lock = threading.Lock()
        self.chance = random.Random(seed)
        self.requests: Counter[str] = Counter()
        self.applied: Counter[str] = Counter()
        self.fates: Counter[str] = Counter()
        self.results: dict[str, str] = {}
        self.unkind: Counter[str] = Counter()
        self.decks: dict[bool, list[str]] = {True: [], False: []}

    def fate(self, key: str, *, idempotent: bool) -> str:
        """Return what becomes of a request."""
        self.requests[key] += 1
        fate = self._draw(idempotent=idempotent) if self.unkind[key] < MOST else ""
        if fate == "twice" and not idempotent:
            # Who knows no keys applies each delivery: nothing can be promised of that.
            fate = ""
        self.unkind[key] += bool(fate)
        self.fates[fate] += 1
        return fate

    def _draw(self, *, idempotent: bool) -> str:
        """Return the next fate: each comes as often as any other, in an order that the seed says."""
        deck = self.decks[idempotent]
        if not deck:
            deck.extend(FATES)
            self.chance.shuffle(deck)
        return deck.pop()

    def apply(self, key: str, *, idempotent: bool) -> str:
        """Act, once for each key where keys are known."""
        if idempotent and key in self.results:
            return self.results[key]
        self.applied[key] += 1
        self.results.setdefault(key, f"{self.applied[key]} of {key}")
        return self.results[key]


class Handler(BaseHTTPRequestHandler):
    """Serves the books."""

    books: Books

    def do_POST(self) -> None:  # noqa: N802
        """Apply something."""
        length = int(self.headers["content-length"])
        asked: dict[str, Any] = json.loads(self.rfile.read(length))
        key, idempotent = self.headers["idempotency-key"], asked["idempotent"]
        with self.books.lock:
            fate = self.books.fate(key, idempotent=idempotent)
            if fate.endswith("before"):
                return self._end(fate, asked["pid"])
            result = self.books.apply(key, idempotent=idempotent)
            if fate == "twice":
                result = self.books.apply(key, idempotent=idempotent)
            if fate.endswith("after"):
                return self._end(fate, asked["pid"])
        return self._answer({"result": result})

    def do_GET(self) -> None:  # noqa: N802
        """Say what is known of a key, or all that was counted."""
        with self.books.lock:
            if self.path == "/books":
                books = self.books
                return self._answer(
                    {"requests": books.requests, "applied": books.applied, "fates": books.fates}
                )
            return self._answer({"result": self.books.results.get(self.path.removeprefix("/"))})

    def _end(self, fate: str, pid: int) -> None:
        if fate.startswith("kill"):
            os.kill(pid, signal.SIGKILL)
        self.close_connection = True
        self.connection.close()

    def _answer(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""

    def finish(self) -> None:
        """End the connection, also one that was cut."""
        with contextlib.suppress(OSError, ValueError):
            super().finish()


def main() -> None:
    """Serve until killed."""
    Handler.books = Books(int(sys.argv[1]))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
