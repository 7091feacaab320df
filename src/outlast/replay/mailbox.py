"""Messages that wait for the workflow, and receivers that wait for messages.

Guards two promises: messages of a name are taken in the order in which they came, and a receiver that gives up leaves nothing
behind and takes nothing with it.
"""

from __future__ import annotations

import asyncio
from collections import deque

from outlast.journal.entry import MessageReceived
from outlast.replay.task import TaskLoop


class Mailbox:
    """The messages of one run, by name.

    Args:
        loop: The loop of the run.
    """

    def __init__(self, loop: TaskLoop) -> None:
        self._loop = loop
        self._mail: dict[str, deque[MessageReceived]] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._numbers: dict[str, deque[int]] = {}
        self._unread: dict[int, MessageReceived] = {}
        self._count = 0

    @property
    def unread(self) -> list[MessageReceived]:
        """The messages that nobody took, in the order in which they came."""
        return list(self._unread.values())

    @property
    def awaited(self) -> list[str]:
        """Names for which somebody waits."""
        return list(self._waiting)

    def put(self, message: MessageReceived) -> None:
        """Add a message, and wake who waits longest for one of its name."""
        self._mail.setdefault(message.name, deque()).append(message)
        self._count += 1
        self._numbers.setdefault(message.name, deque()).append(self._count)
        self._unread[self._count] = message
        self._wake(message.name)

    async def receive(self, name: str) -> MessageReceived:
        """Return the next message of that name; who waits longest is woken first."""
        if self._loop.evicting:
            await self._loop.create_future()
        while name not in self._mail:
            await self._wait(name)
        queue = self._mail[name]
        message = queue.popleft()
        del self._unread[self._numbers[name].popleft()]
        if not queue:
            del self._mail[name]
        return message

    async def _wait(self, name: str) -> None:
        waiting = self._waiting.setdefault(name, deque())
        future: asyncio.Future[None] = self._loop.create_future()
        waiting.append(future)
        try:
            await future
        except BaseException:
            if future in waiting:
                self._leave(name, future)
            elif name in self._mail:
                # Woken, and cancelled before it could take the message: the next one gets it.
                self._wake(name)
            raise

    def _wake(self, name: str) -> None:
        waiting = self._waiting.get(name)
        while waiting:
            future = waiting[0]
            self._leave(name, future)
            if not future.done():
                future.set_result(None)
                return

    def _leave(self, name: str, future: asyncio.Future[None]) -> None:
        waiting = self._waiting[name]
        waiting.remove(future)
        if not waiting:
            del self._waiting[name]
