"""What was asked about one effect, and how long each answer took: what is too slow is named.

An answer counts for `recheck_within`, so what takes longer can let nothing begin: it is not waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import TypeVar

T = TypeVar("T")

SOONER = "have it answer sooner, or give outlast.open() a longer recheck_within"
"""What to do about an answer that is too slow."""


class Looks:
    """What was asked about one effect in one go.

    Args:
        monotonic: Seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._took: dict[str, float] = {}
        self.late = ""
        """What has not answered in time, in words; empty where all has."""

    @contextmanager
    def at(self, what: str) -> Generator[None]:
        """Note how long this takes."""
        began = self._monotonic()
        try:
            yield
        finally:
            self._took[what] = self._took.get(what, 0.0) + self._monotonic() - began

    def slowest(self, age: timedelta, other: str) -> str:
        """Return in words what has taken the longest.

        Args:
            age: Since the first of all was asked.
            other: What else has taken its time since.
        """
        rest = age.total_seconds() - sum(self._took.values())
        what, seconds = max({other: rest, **self._took}.items(), key=lambda one: one[1])
        return f"{what} took {seconds:.1f} s"


_current: ContextVar[Looks | None] = ContextVar("outlast_looks", default=None)


@contextmanager
def noting(looks: Looks) -> Generator[None]:
    """Have noted what is asked within this."""
    token = _current.set(looks)
    try:
        yield
    finally:
        _current.reset(token)


def late_answer() -> str:
    """Return what has not answered in time, in words; empty where all has."""
    looks = _current.get()
    return "" if looks is None else looks.late


@contextmanager
def look(what: str) -> Generator[None]:
    """Note how long this takes, where anybody wants to know."""
    looks = _current.get()
    if looks is None:
        yield
        return
    with looks.at(what):
        yield


async def timely(
    answer: Awaitable[T], what: str, within: timedelta, whose: str = "recheck_within"
) -> T:
    """Return an answer that is given in time.

    Args:
        what: Gives it.
        whose: What says how long that is.

    Raises:
        TimeoutError: It is not; the error names what is too slow.
    """
    limit = asyncio.timeout(within.total_seconds())
    with look(what):
        try:
            async with limit:
                return await answer
        except TimeoutError:
            if not limit.expired():
                raise
            text = f"{what} has not answered within {within} ({whose})"
            if (looks := _current.get()) is not None:
                looks.late = text
            raise TimeoutError(text) from None
