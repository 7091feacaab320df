"""Names the step whose body keeps the event loop from turning, while it does.

Counts ticks of a thread, and no clock: in a process or a machine that was suspended nothing has ticked. The thread runs only while
there are asynchronous bodies, and a little longer.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from outlast.clock import Threads
from outlast.workflows.attempt import Attempt, current_attempt

logger = logging.getLogger("outlast.worker")

TICK_SECONDS = 0.25
BLOCKED_SECONDS = 1.0
"""A body that lets the event loop stand still for so long is named."""

_IDLE_TICKS = 40


class LoopWatch:
    """Looks whether the event loop turns while bodies run on it.

    Args:
        threads: Where it ticks.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._bodies: dict[asyncio.Task[Any], tuple[Attempt, Callable[..., Any]]] = {}
        self._stop: Callable[[], None] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._loop_thread = 0
        self._turned = True
        self._still = 0
        """Ticks since the loop has last turned."""
        self._idle = 0
        """Ticks since there was a body."""
        self._named: set[str] = set()

    def begins(
        self, task: asyncio.Task[Any], attempt: Attempt, function: Callable[..., Any]
    ) -> None:
        """Watch a body until `ends` is called. To be called on the event loop.

        Args:
            function: The author's, to tell its lines from those of what it calls.
        """
        self._bodies[task] = attempt, function
        self._idle = 0
        if self._stop is None:
            self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
            self._turned, self._still = True, 0
            self._stop = self._threads.every(TICK_SECONDS, self._tick, name="outlast-watch")

    def ends(self, task: asyncio.Task[Any]) -> None:
        """The body has ended, or nobody waits for it any more."""
        self._bodies.pop(task, None)

    def end(self) -> None:
        """Watch no more."""
        stop, self._stop = self._stop, None
        if stop is not None:
            stop()

    def _turn(self) -> None:
        self._turned = True
        self._idle = 0 if self._bodies else self._idle + 1
        if self._idle > _IDLE_TICKS:
            self.end()

    def _tick(self) -> None:
        if self._turned:
            self._turned, self._still = False, 0
            try:
                self._loop.call_soon_threadsafe(self._turn)
            except RuntimeError:  # the loop is closed
                self.end()
            return
        self._still += 1
        if self._still * TICK_SECONDS >= BLOCKED_SECONDS:
            self._name()

    def _name(self) -> None:
        """Say whose body runs there now, once for each step or effect."""
        found = self._running()
        frame = sys._current_frames().get(self._loop_thread)  # pyright: ignore[reportPrivateUsage] - documented, and nothing else says it
        if found is None or frame is None or found[0].name in self._named:
            return
        attempt, function = found
        self._named.add(attempt.name)
        logger.warning(
            "run %s: %s (%s) keeps the event loop from turning, for %.1f s now, and every run and timer of this process with it; it "
            "stands at %s. What blocks belongs into a plain `def`, which gets a thread, or into `await asyncio.to_thread(…)`",
            attempt.run_id,
            attempt.name,
            attempt.operation,
            self._still * TICK_SECONDS,
            _place(frame, _file_of(function)),
        )

    def _running(self) -> tuple[Attempt, Callable[..., Any]] | None:
        """Return whose code runs on the loop: the body's own task, or one that it has made."""
        task = asyncio.current_task(self._loop)
        if task is None:
            return None
        known = self._bodies.get(task)
        if known is not None:
            return known
        context: Any = getattr(task, "get_context", dict[Any, Any])()  # from Python 3.12 on
        attempt: Attempt | None = context.get(current_attempt)
        return next((one for one in self._bodies.copy().values() if one[0] is attempt), None)


def _file_of(function: Callable[..., Any]) -> str:
    code: Any = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else code.co_filename


def _place(frame: FrameType, file: str) -> str:
    """Return where the author's code stands, and what it has called, if that is somewhere else."""
    innermost = frame
    own: FrameType | None = frame
    while own is not None and own.f_code.co_filename != file:
        own = own.f_back
    if own is None or own is innermost:
        return _line(innermost)
    return f"{_line(own)}, in a call of {_line(innermost)}"


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_qualname})"
