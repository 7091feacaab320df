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
        self._mail: dict[str, deque[tuple[int, MessageReceived]]] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._new: list[str] = []
        self.received: set[str] = set()
        """Names for which somebody has ever waited."""

    @property
    def unread(self) -> list[tuple[int, MessageReceived]]:
        """The messages that nobody took, each with its number, in the order in which they came."""
        return sorted(
            (pair for waiting in self._mail.values() for pair in waiting), key=lambda pair: pair[0]
        )

    @property
    def untaken(self) -> dict[str, int]:
        """How many messages of each name nobody took."""
        return {name: len(waiting) for name, waiting in self._mail.items() if waiting}

    @property
    def awaited(self) -> list[str]:
        """Names for which somebody waits."""
        return list(self._waiting)

    def put(self, message: MessageReceived, number: int) -> None:
        """Add a message; nobody is woken yet.

        Args:
            number: Its place among the messages of the journal.
        """
        self._mail.setdefault(message.name, deque()).append((number, message))
        self._new.append(message.name)

    def wake(self) -> None:
        """Wake for each new message who waits longest for one of its name.

        To be called when all messages of a turn were handed out: what they are handled by runs before what receives.
        """
        names, self._new = self._new, []
        for name in names:
            self._wake(name)

    def take_all(self, name: str) -> list[tuple[int, MessageReceived]]:
        """Return the messages of that name that nobody took, each with its number, and keep none."""
        return list(self._mail.pop(name, ()))

    async def receive(self, name: str) -> MessageReceived:
        """Return the next message of that name; who waits longest is woken first."""
        if self._loop.evicting:
            await self._loop.create_future()
        self.received.add(name)
        while name not in self._mail:
            await self._wait(name)
        queue = self._mail[name]
        _, message = queue.popleft()
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
