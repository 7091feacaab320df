"""Signs of life of a step or effect: what its body says while it runs, and where that is collected.

What is done with it is the business of others: who waits for the next beat (the executor), and who carries the details to where the
next attempt finds them (`outlast.worker.pulse`). Invariant: nothing here takes a lock, so that no code of an author, and no callback,
ever runs under one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from outlast.errors import DefinitionError
from outlast.journal.codec import codec_for, codec_of
from outlast.workflows.attempt import current_attempt

T = TypeVar("T")


def _nobody() -> None:
    """Nobody listens."""


class Beats:
    """What the body of one attempt says of itself, and whether it was told to stop. Everything here may be called from any thread.

    Args:
        now: Seconds on a clock that never goes back, readable from any thread.
        former: JSON of the details that earlier attempts have left; empty for none.
        heard: Called after each beat that has details, in the thread of the body.
    """

    __slots__ = ("_heard", "_stopped", "at", "former", "hands_out", "is_async", "latest", "now")

    def __init__(
        self,
        now: Callable[[], float],
        former: bytes = b"",
        heard: Callable[[], None] = _nobody,
    ) -> None:
        self.now = now
        self._heard = heard
        self._stopped = ""
        self.former = former
        self.latest = former
        """JSON of the newest details, those of earlier attempts included."""
        self.at = float("-inf")
        """When the last beat was, by `now`; before any time when there was none."""
        self.is_async = False
        """Whether the body is a coroutine function: a cancel reaches it where it awaits."""
        self.hands_out = False
        """Whether the body has asked for its completion token: it may be answered before it has ended."""

    @property
    def stopped(self) -> bool:
        """Whether the body was told to stop."""
        return bool(self._stopped)

    def beat(self, details: bytes) -> None:
        """Take a beat.

        Args:
            details: As JSON; empty when there is nothing to say but that the body lives.

        Raises:
            asyncio.CancelledError: The body was told to stop, and nothing else would tell it.
        """
        self.at = self.now()
        if details:
            self.latest = details
            self._heard()
        if self._stopped and not (self.is_async and _in_a_task()):
            raise asyncio.CancelledError(self._stopped)

    def stop(self, why: str) -> None:
        """Tell the body, at its next beat, that nobody waits for it any more."""
        self._stopped = why


current_beats: ContextVar[Beats] = ContextVar("outlast_beats")


def heartbeat(details: Any = None) -> None:
    """Say that the step or effect is alive, and how far it has come.

    An attempt that declares a `heartbeat_timeout` and is silent for longer is cancelled, counts as failed by `TimeoutError`, and what
    it still returns is dropped. Details are kept for the next attempt, also across the death of the process, but not at each beat: at
    most once in 0.8 times the `heartbeat_timeout`, or 30 s, and with a failure that is recorded. So a beat costs next to nothing.

    A plain function is told here that its attempt was cancelled (it timed out, its run was cancelled, its worker stops): let the
    exception through after cleaning up. A coroutine is told where it awaits, as everywhere in asyncio.

    May be called in any thread that has the body's context: `asyncio.to_thread` gives it, and `contextvars.copy_context().run`.

    Args:
        details: Any data that can be stored, plain or of a type of your own; without them those of the last beat stay.

    Raises:
        asyncio.CancelledError: The attempt was cancelled.
        EncodeError: The details cannot be stored.
        DefinitionError: No step or effect is running here.

    Example:
        ```python
        from datetime import timedelta

        import outlast

        @outlast.step(
            heartbeat_timeout=timedelta(seconds=10),
            retry=outlast.RetryPolicy(initial_interval=timedelta(milliseconds=10)),
        )
        def index(pages: int) -> str:
            first = outlast.heartbeat_details(int) or 0
            for page in range(first, pages):
                outlast.heartbeat(page)
                if page == 3 and first == 0:
                    raise OSError("the line was lost at page 3")
            return f"from page {first}"

        @outlast.workflow
        async def crawl(pages: int) -> str:
            return await index(pages)

        async with outlast.open("memory://") as app:
            assert await app.run(crawl(5), id="crawl-1") == "from page 3"
        ```
    """
    beats = _beats("outlast.heartbeat()")
    beats.beat(b"" if details is None else codec_of(details, where=_where()).encode(details))


def heartbeat_details(type: type[T]) -> T | None:  # noqa: A002 - the field's word
    """Return the details of the last beat that earlier attempts have left, or None: what the body can go on from.

    They are the last ones that were kept, which may be older than the last beat: see `heartbeat`. In one attempt the answer stays the
    same, whatever it beats itself.

    Args:
        type: What the details are decoded to.

    Raises:
        DecodeError: What was kept does not fit the type.
        DefinitionError: No step or effect is running here.

    Example:
        ```python
        import outlast
        from outlast.testing import attempt

        def resume() -> list[str]:
            return outlast.heartbeat_details(list[str]) or []

        with attempt(details=["a.txt", "b.txt"]):
            assert resume() == ["a.txt", "b.txt"]
        with attempt():
            assert resume() == []
        ```
    """
    former = _beats("outlast.heartbeat_details()").former
    return codec_for(type, where=_where()).decode(former) if former else None


def _beats(called: str) -> Beats:
    found = current_beats.get(None)
    if found is None:
        raise DefinitionError(
            f"{called} was called outside a step or effect",
            hint="call it in the body of a @step or @effect; a thread of its own needs the body's context: asyncio.to_thread(…), or "
            "contextvars.copy_context().run; a test of the plain function makes one by `with outlast.testing.attempt():`",
        )
    return found


def _where() -> str:
    return f"the heartbeat details of {current_attempt.get().name}"


def _in_a_task() -> bool:
    """Whether a task of this thread's event loop runs here, which a cancel would reach."""
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False
