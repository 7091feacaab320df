"""Time, randomness and threads as protocols: whoever needs one is given it, so that a simulator can give its own.

The real ones live in `app`. Nothing below `worker` calls a clock.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> datetime:
        """Return the wall time, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back and that count while the machine is suspended (CLOCK_BOOTTIME)."""
        ...


class Random(Protocol):
    """Where unpredictable bits come from."""

    def bits(self, count: int) -> bytes:
        """Return `count` random bytes, fit for seeds and ids."""
        ...


class Threads(Protocol):
    """Where work runs that must not run on the event loop."""

    def run(self, function: Callable[[], T]) -> Awaitable[T]:
        """Run `function` in a thread of the pool for step bodies, once one is free, and return what it returns.

        A cancel keeps a function from running that still waits for a thread, and is not noticed by one that runs.
        """
        ...

    def every(self, seconds: float, tick: Callable[[], Any], *, name: str) -> Callable[[], None]:
        """Call `tick` each `seconds`, independent of the event loop, until the returned function is called."""
        ...
