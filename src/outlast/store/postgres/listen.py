"""Hints that something has changed: one connection of the process listens, and a short transaction of its own tells.

A notification is sent outside the commit, by the thread that listens, at most one every few milliseconds, whatever the number of commits:
inside a commit it would take a lock of the whole cluster. Losing every one costs latency only; each time that the connection is made
anew, everybody looks.

What this process tells it hears itself. A connection on which it does not, or that has been silent for long and does not answer, is of no
use, whatever it seems to be: another is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.pq import ExecStatus

from outlast.store.postgres.setting import PostgresSetting

logger = logging.getLogger("outlast.store")

_BETWEEN_SECONDS = 0.02
"""Between two notifications that this process sends."""
_SILENT_SECONDS = 30.0
"""After so long without a word the connection is asked whether it lives."""
_ANSWER_SECONDS = 10.0
"""So long it may take until this process hears what it has told."""
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_LEAVE_SECONDS = 1.0
"""So long closing waits for a thread that is about to make a connection."""
_BEAT = "beat"
"""What is told to find out whether it is heard: nothing has changed."""


class Hints:
    """Who is to be told that something may have changed, and the thread that hears and tells of it.

    Args:
        setting: Its `listen` says whether and where to listen.
    """

    def __init__(self, setting: PostgresSetting) -> None:
        self._setting = setting
        self._lock = threading.Lock()
        self._subscribers: list[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = []
        self._tell = threading.Event()
        self._stop = threading.Event()
        self._waker, self._wakes = socket.socketpair()
        self._waker.setblocking(False)
        self._wakes.setblocking(False)
        self._thread = threading.Thread(
            target=self._work, name="outlast-postgres-listen", daemon=True
        )

    def start(self) -> None:
        """Begin to listen."""
        if self._setting.listen is not None:
            self._thread.start()

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` on the running loop with each hint; return how to stop."""
        entry = (asyncio.get_running_loop(), wake)
        with self._lock:
            self._subscribers.append(entry)

        def stop() -> None:
            with self._lock:
                if entry in self._subscribers:
                    self._subscribers.remove(entry)

        return stop

    def wake(self) -> None:
        """Tell this process."""
        with self._lock:
            subscribers = list(self._subscribers)
        for loop, wake in subscribers:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(wake)

    def changed(self) -> None:
        """Something was committed: tell this process now, and others soon."""
        self.wake()
        if not self._tell.is_set():
            self._tell.set()
            self._rouse()

    def close(self) -> None:
        """Stop to listen, and forget all subscribers."""
        with self._lock:
            self._subscribers.clear()
        self._stop.set()
        self._rouse()
        if self._thread.is_alive():
            self._thread.join(_LEAVE_SECONDS)
        self._waker.close()
        if not self._thread.is_alive():
            self._wakes.close()

    def _rouse(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"!")

    def _work(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._stop.is_set():
            line = Line(self._setting)
            try:
                with contextlib.closing(line):
                    line.open()
                    # What was told while nobody listened is looked for by all, here and elsewhere.
                    self.wake()
                    self._tell.set()
                    self._attend(line)
            except StandbyError as error:
                logger.info("%s: %s; looks find what is new", self._setting.place, error)
                self._stop.wait(_LONGEST_PAUSE_SECONDS)
            except (psycopg.Error, OSError) as error:
                if line.was_heard:
                    pause = _FIRST_PAUSE_SECONDS
                told = str(error).strip().splitlines() or [type(error).__name__]
                logger.warning(
                    "%s: the connection that listens was lost, making another: %s",
                    self._setting.place,
                    told[0],
                )
                self._stop.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        if self._waker.fileno() < 0:
            self._wakes.close()

    def _attend(self, line: Line) -> None:
        """Hear and tell until the end."""
        with selectors.DefaultSelector() as selector:
            selector.register(line.fileno(), selectors.EVENT_READ)
            selector.register(self._wakes, selectors.EVENT_READ)
            while not self._stop.is_set():
                if line.hear():
                    self.wake()
                rest = line.rest()
                if self._tell.is_set() and rest <= 0:
                    # What is committed from here on is told with the next one.
                    self._tell.clear()
                    line.tell()
                until_told = rest if self._tell.is_set() else _SILENT_SECONDS
                selector.select(max(0.0, min(until_told, line.check())))
                with contextlib.suppress(BlockingIOError):
                    self._wakes.recv(4096)


class StandbyError(psycopg.OperationalError):
    """Nothing can be heard here, until it is promoted."""


class Line:
    """A connection that listens. Nothing but opening it ever waits for the server.

    Attributes:
        was_heard: What was told on it was heard: it is of use.
    """

    def __init__(self, setting: PostgresSetting) -> None:
        self._setting = setting
        self._channel = f"outlast_{setting.schema}"[:63]
        self._connection: psycopg.Connection[Any] | None = None
        self._pid = 0
        self._busy = False
        self._heard_at = self._told_at = time.monotonic()
        self._asked_at: float | None = None
        self.was_heard = False

    def open(self) -> None:
        """Connect, and listen.

        Raises:
            psycopg.Error: It cannot be done.
        """
        conninfo = self._setting.listen or self._setting.conninfo
        self._connection = connection = psycopg.connect(conninfo, autocommit=True)
        # Not what the connection says: a pooler tells a number of its own.
        row = connection.execute("SELECT pg_backend_pid(), pg_is_in_recovery()").fetchone()
        assert row is not None
        self._pid, is_standby = row
        if is_standby:
            raise StandbyError("a standby tells nobody of what it follows")
        if self._pid != connection.info.backend_pid and not self._setting.proxied:
            raise psycopg.OperationalError(
                "a pooler stands on its way, where nothing is heard: listen= has to lead past it"
            )
        connection.execute(f'LISTEN "{self._channel}"'.encode())
        self._heard_at = time.monotonic()
        self._told_at = self._heard_at - _BETWEEN_SECONDS

    @property
    def _pgconn(self) -> psycopg.pq.abc.PGconn:
        assert self._connection is not None
        return self._connection.pgconn

    def fileno(self) -> int:
        """Return the descriptor that is readable when something may be heard."""
        return self._pgconn.socket

    def rest(self) -> float:
        """Return how many seconds from now something may be told."""
        if self._busy:
            return _ANSWER_SECONDS
        return self._told_at + _BETWEEN_SECONDS - time.monotonic()

    def tell(self, what: str = "") -> None:
        """Notify everybody, without waiting for it."""
        self._pgconn.send_query(f"NOTIFY \"{self._channel}\", '{what}'".encode())
        self._pgconn.flush()
        self._busy = True
        self._told_at = time.monotonic()
        if self._asked_at is None:
            self._asked_at = self._told_at

    def hear(self) -> bool:
        """Return whether another process has told that something has changed.

        Raises:
            psycopg.Error: The connection is lost, or takes no notifications.
        """
        pgconn = self._pgconn
        pgconn.flush()
        pgconn.consume_input()
        while self._busy and not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                self._busy = False
            elif result.status == ExecStatus.FATAL_ERROR:
                raise psycopg.OperationalError(os.fsdecode(result.error_message))
        is_news = False
        while (one := pgconn.notifies()) is not None:
            self._heard_at = time.monotonic()
            if one.be_pid == self._pid:
                self._asked_at, self.was_heard = None, True
            elif one.extra != _BEAT.encode():
                is_news = True
        return is_news

    def check(self) -> float:
        """Ask a connection that is silent for long whether it lives; return after how many seconds to look again.

        Raises:
            psycopg.OperationalError: It has not answered.
        """
        now = time.monotonic()
        if self._asked_at is None and now >= self._heard_at + _SILENT_SECONDS and not self._busy:
            self.tell(_BEAT)
        if self._asked_at is None:
            return self._heard_at + _SILENT_SECONDS - now
        if now >= self._asked_at + _ANSWER_SECONDS:
            raise psycopg.OperationalError(
                f"nothing that is told on it is heard within {_ANSWER_SECONDS:g} s"
            )
        return self._asked_at + _ANSWER_SECONDS - now

    def proves(self) -> bool:
        """Whether what is told on it is heard, in little time."""
        self.tell(_BEAT)
        end = time.monotonic() + _ANSWER_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno(), selectors.EVENT_READ)
            while not self.was_heard and time.monotonic() < end:
                selector.select(_ANSWER_SECONDS)
                self.hear()
        return self.was_heard

    def close(self) -> None:
        """Let go of it."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
