"""The application's way to answer: what it says goes to the client as it comes, and into the record when it is whole.

The last piece of an answer leaves only when the answer is kept, so that whoever has seen all of it will see it again. The application
hears that the client has gone only when that piece has left: one that stops for it would cut the answer off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from outlast.http.answer import Answer, Unkept, kept_headers
from outlast.http.asgi import Message
from outlast.http.outlet import Outlet
from outlast.http.policy import IdempotencyPolicy

_START = "http.response.start"
_BODY = "http.response.body"


class Recorder:
    """One answer, while it is made.

    Args:
        settle: Keeps a whole answer, and returns the one to send in its place, if there is one.
    """

    def __init__(
        self,
        outlet: Outlet,
        policy: IdempotencyPolicy,
        settle: Callable[[Answer | Unkept], Awaitable[Answer | None]],
    ) -> None:
        self._outlet = outlet
        self._policy = policy
        self._settle = settle
        self._start: Message | None = None
        self._parts: list[bytes] = []
        self._length_bytes = 0
        self._is_whole = False
        self._ended = asyncio.Event()
        self.is_begun = False
        """Whether the client may have seen some of it."""

    @property
    def status(self) -> int:
        """Of the answer, or 0 before it has one."""
        return 0 if self._start is None else int(self._start["status"])

    @property
    def is_ended(self) -> bool:
        """Whether the answer is whole, and its end settled."""
        return self._is_whole

    async def ended(self) -> None:
        """Return when the answer is whole and has left, or can leave no more."""
        await self._ended.wait()

    async def send(self, message: Message) -> None:
        """Take one message of the application.

        Raises: RuntimeError: It comes out of turn.
        """
        kind = message["type"]
        if kind == _START:
            if self._start is not None:
                raise RuntimeError("the answer was begun already")
            self._start = message
        elif kind == _BODY:
            await self._take(message)
        else:
            await self._outlet.send(message)

    async def _take(self, message: Message) -> None:
        if self._start is None or self.is_ended:
            raise RuntimeError("a body belongs between the beginning and the end of an answer")
        self._record(bytes(message.get("body", b"")))
        if message.get("more_body", False):
            await self._pass_on(self._start, message)
            return
        other = await self._settle(self._whole())
        self._is_whole = True
        try:
            if other is not None and not self.is_begun:
                await other.send(self._outlet.send, replayed=True)
            else:
                await self._pass_on(self._start, message)
        finally:
            self._ended.set()

    async def _pass_on(self, start: Message, message: Message) -> None:
        if not self.is_begun:
            self.is_begun = True
            await self._outlet.send(start)
        await self._outlet.send(message)

    def _record(self, part: bytes) -> None:
        self._length_bytes += len(part)
        if self._length_bytes > self._policy.largest_answer_bytes:
            self._parts.clear()
        else:
            self._parts.append(part)

    def _whole(self) -> Answer | Unkept:
        most = self._policy.largest_answer_bytes
        if self._length_bytes > most:
            return Unkept(self.status, f"is larger than the {most} bytes that are kept")
        start: Any = self._start
        lines = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in start.get("headers", ())]
        return Answer(
            self.status, kept_headers(lines, self._policy.keeps_header), b"".join(self._parts)
        )
