"""Carries the details of an attempt's beats to where the next attempt finds them, and no more often than it should.

What a body calls (`outlast.workflows.heartbeat`) knows nothing of this, and this knows nothing of where details go: whoever makes the
attempt hands in how they are carried. Law: between two writes lies at least the interval, and the newest details are never lost but
with the process: what is not yet carried when the attempt ends stays in `unkept`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeAlias

from outlast.workflows.heartbeat import Beats

Carry: TypeAlias = Callable[[bytes], Awaitable[object]]
"""Takes the JSON of details to where the next attempt finds them; returns when they are there, or never will be."""

LONGEST = timedelta(seconds=30)
_SHARE = 0.8


def interval(heartbeat_timeout: timedelta | None) -> timedelta:
    """Return the least time between two writes of an attempt's details.

    Source: Temporal's clients, min(0.8 x timeout, 30 s).
    """
    return LONGEST if heartbeat_timeout is None else min(heartbeat_timeout * _SHARE, LONGEST)


class Pulse:
    """The beats of one attempt on their way. To be made on the event loop, and closed there.

    Args:
        carry: Where to. Called again only after it has returned.
        every: Between two calls of it.
        now: Seconds on a clock that never goes back, readable from any thread.
        former: JSON of the details that earlier attempts have left.
    """

    def __init__(
        self, carry: Carry, every: timedelta, now: Callable[[], float], former: bytes
    ) -> None:
        self.beats = Beats(now, former, self._hear)
        self._carry = carry
        self._every = every
        self.kept = former
        """JSON of the details that were carried last."""
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Event
        self._is_told = False
        self._is_closed = False
        self._carrying: asyncio.Future[None] | None = None
        self._pumping: asyncio.Task[None] | None = None

    @property
    def was_felt(self) -> bool:
        """Whether there was any beat with details."""
        return self._is_told or self._pumping is not None

    @property
    def unkept(self) -> bytes:
        """JSON of the newest details, where they were not carried yet; else empty."""
        return self.beats.latest if self.beats.latest != self.kept else b""

    def close(self) -> None:
        """Carry nothing more than what is on its way."""
        self._is_closed = True
        if self._pumping is not None:
            self._pumping.cancel()

    async def settled(self) -> None:
        """Return when nothing is on its way any more."""
        if self._carrying is not None:
            await asyncio.wait({self._carrying})

    def _hear(self) -> None:
        """There are new details; in whatever thread. One word to the loop is enough for all that come before it has listened."""
        if not self._is_told:
            self._is_told = True
            with contextlib.suppress(
                RuntimeError
            ):  # a loop that is closed: nobody is left to carry them
                self._loop.call_soon_threadsafe(self._listen)

    def _listen(self) -> None:
        self._is_told = False
        if self._is_closed:
            return
        if self._pumping is None:
            self._news = asyncio.Event()
            self._pumping = self._loop.create_task(self._pump(), name="outlast-pulse")
        self._news.set()

    async def _pump(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            details = self.unkept
            if not details:
                continue
            self._carrying = asyncio.ensure_future(self._bring(details))
            # What is on its way arrives, whether or not the attempt lasts so long.
            await asyncio.shield(self._carrying)
            await asyncio.sleep(self._every.total_seconds())

    async def _bring(self, details: bytes) -> None:
        await self._carry(details)
        self.kept = details
