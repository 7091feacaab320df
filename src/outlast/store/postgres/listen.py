"""Hints that something has changed: one connection of the process listens, and a short transaction of its own tells.

A notification is sent outside the commit, by the thread that listens, at most one every few milliseconds, whatever the number of commits:
inside a commit it would take a lock of the whole cluster. Losing every one costs latency only; each time that the connection is made
anew, everybody looks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import socket
import threading
from collections.abc import Callable

import psycopg

from outlast.store.postgres.setting import PostgresSetting

logger = logging.getLogger("outlast.store")

_BETWEEN_SECONDS = 0.02
"""Between two notifications that this process sends."""
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0


class Hints:
    """Who is to be told that something may have changed, and the thread that hears and tells of it.

    Args:
        setting: Its `listen` says whether and where to listen.
    """

    def __init__(self, setting: PostgresSetting) -> None:
        self._setting = setting
        self._channel = f"outlast_{setting.schema}"[:63]
        self._lock = threading.Lock()
        self._subscribers: list[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = []
        self._tell = threading.Event()
        self._stop = threading.Event()
        self._waker, self._wakes = socket.socketpair()
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
            self._thread.join()
        self._waker.close()
        self._wakes.close()

    def _rouse(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"!")

    def _work(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._stop.is_set():
            try:
                with psycopg.connect(
                    self._setting.listen or self._setting.conninfo, autocommit=True
                ) as connection:
                    connection.execute(f'LISTEN "{self._channel}"'.encode())
                    pause = _FIRST_PAUSE_SECONDS
                    # What was told while nobody listened is looked for by all.
                    self.wake()
                    self._hear(connection)
            except (psycopg.Error, OSError) as error:
                logger.warning(
                    "%s: the connection that listens was lost, making another: %s",
                    self._setting.place,
                    str(error).strip().splitlines()[0]
                    if str(error).strip()
                    else type(error).__name__,
                )
                self._stop.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def _hear(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        own = connection.info.backend_pid
        while not self._stop.is_set():
            select.select([connection.fileno(), self._wakes], [], [], 60.0)
            with contextlib.suppress(BlockingIOError):
                self._wakes.recv(4096, socket.MSG_DONTWAIT)
            heard = [one.pid for one in connection.notifies(timeout=0) if one.pid != own]
            if heard:
                self.wake()
            if self._tell.is_set():
                self._tell.clear()
                connection.execute(f'NOTIFY "{self._channel}"'.encode())
                self._stop.wait(_BETWEEN_SECONDS)
