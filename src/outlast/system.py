"""The system as clock, randomness and threads: what a process uses where tests hand in their own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import secrets
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

T = TypeVar("T")

logger = logging.getLogger("outlast")

_STEP_THREADS = 64
_FULL_SECONDS = 60.0
"""Between two warnings that every thread is busy."""


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """Return the wall time in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds since boot, suspends included."""
        if sys.platform == "linux":
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()


class SystemRandom:
    """The operating system's randomness."""

    def bits(self, count: int) -> bytes:
        """Return `count` random bytes."""
        return secrets.token_bytes(count)


class SystemThreads:
    """Real threads. Those for step bodies are daemons: one that hangs must not keep the process from ending."""

    def __init__(self, limit: int = _STEP_THREADS) -> None:
        self._limit = limit
        self._room = asyncio.Semaphore(limit)
        self._warn_at = 0.0

    async def run(self, function: Callable[[], T]) -> T:
        """Run `function` in a thread of its own, at most `limit` at a time."""
        if self._room.locked():
            self._say_full()
        async with self._room:
            outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

            def body() -> None:
                if not outcome.set_running_or_notify_cancel():
                    return
                try:
                    outcome.set_result(function())
                except BaseException as error:  # noqa: BLE001 - carried to whoever waits
                    outcome.set_exception(error)

            threading.Thread(target=body, name="outlast-step", daemon=True).start()
            return await asyncio.wrap_future(outcome)

    def _say_full(self) -> None:
        if time.monotonic() < self._warn_at:
            return
        self._warn_at = time.monotonic() + _FULL_SECONDS
        logger.warning(
            "all %d threads for synchronous steps and effects are busy; the next ones wait until one returns. A body that hangs "
            "keeps its thread past its timeout: give its own calls a timeout, or write it as async def",
            self._limit,
        )

    def every(self, seconds: float, tick: Callable[[], Any], *, name: str) -> Callable[[], None]:
        """Call `tick` each `seconds` in a thread of its own."""
        stop = threading.Event()

        def body() -> None:
            while not stop.wait(seconds):
                tick()

        threading.Thread(target=body, name=name, daemon=True).start()
        return stop.set
