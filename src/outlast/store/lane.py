"""One thread that owns one connection: jobs run on it in order, urgent ones first.

A connection is only ever touched by its own thread, so nothing needs a lock but the queue.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeAlias, TypeVar

from outlast.errors import StoreError, StoreUnavailableError

T = TypeVar("T")

Tell: TypeAlias = Callable[[BaseException], StoreError | None]
"""Tells what a driver has raised as an error of Outlast; None for what is no error of the driver."""

logger = logging.getLogger("outlast.store")


class Job(Generic[T]):
    """A function and who waits for what it returns."""

    __slots__ = ("function", "future")

    def __init__(self, function: Callable[[], T]) -> None:
        self.function = function
        self.future: Future[T] = Future()

    def run(self, tell: Tell) -> None:
        """Run it, unless nobody waits any more."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.function()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to whoever waits
            told = tell(error)
            if told is not None:
                told.__cause__ = error
            self.future.set_exception(told or error)
        else:
            self.future.set_result(result)


class Lane:
    """A thread with a queue, once it was started.

    Args:
        path: The database, for errors.
        name: Of the thread.
        tell: Tells the driver's errors.
        idle: Called on the thread whenever nothing was to do for `interval` seconds.
        last: Called on the thread when it ends.
    """

    def __init__(
        self,
        path: str,
        name: str,
        *,
        tell: Tell,
        idle: Callable[[], None],
        last: Callable[[], None],
    ) -> None:
        self._path = path
        self._tell = tell
        self._idle = idle
        self._last = last
        self._wanted = threading.Condition()
        self._urgent: deque[Job[Any]] = deque()
        self._queue: deque[Job[Any]] = deque()
        self._stopping = False
        self._interval = 1.0
        self.ended: Future[None] = Future()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Begin: what `idle` and `last` need is there from now on."""
        self._thread.start()

    def submit(self, function: Callable[[], T], *, urgent: bool = False) -> Future[T]:
        """Queue `function`, before all others when it is urgent.

        Raises:
            StoreUnavailableError: The store is closed.
        """
        job = Job(function)
        with self._wanted:
            if self._stopping:
                raise StoreUnavailableError(
                    f"{self._path} was closed by this process", hint="open the store again"
                )
            (self._urgent if urgent else self._queue).append(job)
            self._wanted.notify()
        return job.future

    def tick_every(self, seconds: float) -> None:
        """Set after how many idle seconds `idle` is called."""
        with self._wanted:
            self._interval = seconds
            self._wanted.notify()

    def stop(self) -> None:
        """Take no more jobs, and end when those queued are done."""
        with self._wanted:
            self._stopping = True
            self._wanted.notify()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _work(self) -> None:
        try:
            while True:
                job, stopping = self._next()
                if job is not None:
                    job.run(self._tell)
                elif stopping:
                    break
                else:
                    self._do_chores()
        finally:
            try:
                self._last()
            finally:
                self.ended.set_result(None)

    def _do_chores(self) -> None:
        # A chore of idle time is never worth the thread: what is really wrong shows in the next job.
        try:
            self._idle()
        except OSError:
            pass
        except Exception as error:
            if self._tell(error) is None:
                logger.exception("%s: what is done in idle time broke inside Outlast", self._path)

    def _next(self) -> tuple[Job[Any] | None, bool]:
        with self._wanted:
            if not (self._urgent or self._queue or self._stopping):
                self._wanted.wait(self._interval)
            queue = self._urgent or self._queue
            return (queue.popleft() if queue else None), self._stopping
