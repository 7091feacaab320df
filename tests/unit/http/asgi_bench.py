"""Calls an ASGI application as a server does, on simulated time, and gives its answer."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from outlast.http import IdempotencyPolicy
from outlast.testing import Process, SimulatedClock, SimulatedLoop

KEY = '"key-1"'


@dataclass
class Reply:
    """What a client has seen."""

    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    is_whole: bool = False

    def header(self, name: str) -> str | None:
        """Return the first value of a header."""
        found = [value for key, value in self.headers if key == name]
        return found[0] if found else None

    @property
    def json(self) -> Any:
        """What the body holds."""
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Of a whole problem; empty for another answer."""
        if not self.is_whole or self.header("content-type") != "application/problem+json":
            return ""
        return self.json["code"]

    @property
    def is_replayed(self) -> bool:
        """Whether it says that it is not the first time."""
        return self.header("idempotent-replayed") == "true"


class Connection:
    """One request on its way."""

    def __init__(self, app, *, parts: list[bytes], headers, scope: dict[str, Any]) -> None:
        self.reply = Reply()
        self.gone = asyncio.Event()
        self._parts = list(parts)
        self._whole = asyncio.Event()
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/pay",
            "raw_path": b"/pay",
            "query_string": b"",
            "root_path": "",
            "headers": [(n.encode("latin-1"), v.encode("latin-1")) for n, v in headers],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            **scope,
        }
        self.app = app

    async def receive(self):
        """What the server hands on: the pieces of the body, then that the client has gone."""
        if self._parts:
            part = self._parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self._parts)}
        gone, whole = (asyncio.create_task(one.wait()) for one in (self.gone, self._whole))
        await asyncio.wait({gone, whole}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        whole.cancel()
        return {"type": "http.disconnect"}

    async def send(self, message) -> None:
        """Take a message for the client; raises as a server may when that has gone."""
        if self.gone.is_set():
            raise OSError("the client has gone")
        if message["type"] == "http.response.start":
            assert not self.reply.status, "begun twice"
            self.reply.status = message["status"]
            self.reply.headers = [
                (n.decode("latin-1").lower(), v.decode("latin-1")) for n, v in message["headers"]
            ]
        elif message["type"] == "http.response.body":
            assert self.reply.status and not self.reply.is_whole
            self.reply.body += message.get("body", b"")
            if not message.get("more_body", False):
                self.reply.is_whole = True
                self._whole.set()

    async def run(self) -> Reply:
        """Let the application answer."""
        await self.app(self.scope, self.receive, self.send)
        return self.reply


def connection(
    app, *, key: str | None = KEY, body: bytes | list[bytes] = b"{}", headers=(), **scope
):
    """Return a request; by default `POST /pay` with one key."""
    keys = [] if key is None else [("idempotency-key", key)]
    parts = body if isinstance(body, list) else [body]
    return Connection(app, parts=parts, headers=[*keys, *headers], scope=scope)


async def post(app, **request: Any) -> Reply:
    """Send a request, and return the answer."""
    return await connection(app, **request).run()


def policy(**fields: Any) -> IdempotencyPolicy:
    """Return a policy for which all clients are one."""
    return IdempotencyPolicy(**{"principal": lambda _: "ann", **fields})


class Handler:
    """An application that counts how often it acted. What it does is told by the test."""

    def __init__(self, act: Callable[[Any, Any, Any], Awaitable[None]] | None = None) -> None:
        self.count = 0
        self.bodies: list[bytes] = []
        self.may_go_on = asyncio.Event()
        self._act = act

    async def __call__(self, scope, receive, send) -> None:
        """Answer one request."""
        self.count += 1
        self.bodies.append((await receive())["body"])
        if self._act is not None:
            await self._act(scope, receive, send)
        else:
            await answer(send, 201, f"paid {self.count}".encode())


async def answer(send, status: int = 200, body: bytes = b"", headers=()) -> None:
    """Answer in one piece."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


_processes: list[Process] = []


def process() -> Process:
    """Return a simulated process that a server runs in."""
    _processes.append(Process(f"server-{len(_processes)}"))
    return _processes[-1]


def simulate(
    main: Callable[[SimulatedClock], Awaitable[Any]],
    *,
    longest: timedelta = timedelta(days=3),
    seed: int | None = None,
) -> Any:
    """Run on simulated time.

    Args:
        seed: Chooses which process goes on next; all in turn without one.
    """
    clock = SimulatedClock()
    source = None if seed is None else random.Random(seed)
    loop = SimulatedLoop(clock, longest=longest, source=source)
    try:
        return loop.run_until_complete(main(clock))
    finally:
        for one in _processes:  # what the dead have left is ended, too
            one.release()
        _processes.clear()
        loop.drain()
        loop.close()
