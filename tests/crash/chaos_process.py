"""A worker in a process of its own, that chaos may kill, stop and restart, and whose wall clock may be set.

    python chaos_process.py URL [--births N]

It works until SIGTERM. On SIGUSR1 it stops itself (SIGSTOP) from its event loop: its other threads, those of the store and of the
lease among them, stand wherever they are, but no asynchronous body stands between the look at the lease and its first `await`. It
chooses the worst moment, when the intent of an effect was just recorded, if one comes soon. On SIGUSR2 it does the same in the middle of a write transaction.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import mmap
import os
import signal
import struct
import threading
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import chaos_flow

from outlast.app import App, SystemClock, sqlite_file
from outlast.store.sqlite.connection import SQLiteOptions
from outlast.store.sqlite.store import open_sqlite
from outlast.worker.worker import WorkerOptions
from outlast.workflows.registry import Registry

SECONDS = struct.Struct("d")


class SteppedClock(SystemClock):
    """The machine's clocks, and a file that says by how many seconds the wall clock was set wrong; every process sees it at once."""

    def __init__(self, file: Path) -> None:
        if not file.exists():
            file.write_bytes(SECONDS.pack(0.0))
        with file.open("r+b") as opened:
            self._shared = mmap.mmap(opened.fileno(), SECONDS.size)

    def now(self) -> datetime:
        """Return the wall time."""
        return super().now() + timedelta(seconds=SECONDS.unpack(self._shared[:])[0])

    def set_off(self, by: timedelta) -> None:
        """Set the wall clock, for all processes, to the right time and so much more."""
        self._shared[:] = SECONDS.pack(by.total_seconds())


def clock_of(directory: Path) -> SteppedClock:
    """Return the clock of all processes on one directory."""
    return SteppedClock(directory / "offset")


class StoppingStore:
    """A store that stops its process, when asked to, after the next commit of an intent; or soon, when none comes."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._asked: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        """Hand everything else through."""
        return getattr(self._store, name)

    def stop_soon(self) -> None:
        """Stop at the next good moment."""
        self._asked = asyncio.get_running_loop().call_later(0.3, self._stop)

    async def commit(self, changes: Any) -> Any:
        """Write."""
        verdicts = await self._store.commit(changes)
        kinds = {row.kind for change in changes for row in getattr(change, "entries", ())}
        if self._asked is not None and "effect_intended" in kinds:
            self._asked.cancel()
            self._stop()
        return verdicts

    def _stop(self) -> None:
        self._asked = None
        stop_myself()


class ChaosApp(App):
    """The app, on the clock that can be set."""

    def __init__(self, options: argparse.Namespace) -> None:
        worker = WorkerOptions(
            lease=timedelta(seconds=options.lease),
            idle=timedelta(seconds=options.idle),
            host="chaos",
            pid=os.getpid(),
            library="0",
        )
        super().__init__(
            options.url, workflows=None, tenant="default", principal="worker", options=worker
        )
        self._busy = timedelta(seconds=options.busy)

    async def __aenter__(self) -> ChaosApp:
        """Open and start."""
        store = await self.open_store()
        self.stopping = StoppingStore(store)
        try:
            await self._start_worker(self.stopping, Registry.of_everything([chaos_flow]))
        except BaseException:
            await store.close()
            raise
        return self

    async def open_store(self) -> Any:
        """Open the file."""
        file, options = sqlite_file(self._url), SQLiteOptions(busy_timeout=self._busy)
        return await open_sqlite(file, clock=clock_of(directory()), options=options)


def directory() -> Path:
    """Return where all files lie."""
    return Path(os.environ[chaos_flow.DIRECTORY])


def note(file: str, **line: Any) -> None:
    """Append a line to a log that outlives the process."""
    with (directory() / file).open("a") as opened:
        opened.write(json.dumps(line) + "\n")


def stop_myself() -> None:
    """Stop the whole process, and return when SIGCONT has come: not in the moment until the stop has reached this thread.

    SIGCONT wakes a process that blocks it too, and then waits to be taken; a stop discards one that came before it.
    """
    os.kill(os.getpid(), signal.SIGSTOP)
    signal.sigwait({signal.SIGCONT})


def stop_within_a_transaction(store: Any) -> None:
    """Stop the whole process while it holds the write lock of the file; still from the event loop."""
    loop = asyncio.get_running_loop()
    went_on = threading.Event()

    def stop() -> None:
        stop_myself()
        went_on.set()

    def hold() -> None:
        with store._writer.immediate():
            loop.call_soon_threadsafe(stop)
            went_on.wait()

    store._writing.submit(hold, urgent=True)


async def bear(app: App, count: int) -> None:
    """Start runs that are born in this worker's hands, and note each that was accepted."""
    for number in range(count):
        label = f"born-{os.getpid()}-{number}"
        await app.start(chaos_flow.chaos_mixed(label), id=label)
        note("accepted.jsonl", label=label)
        await asyncio.sleep(0.1)


async def main(options: argparse.Namespace) -> None:
    """Work until SIGTERM."""
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, over.set)
    async with ChaosApp(options) as app:
        loop.add_signal_handler(signal.SIGUSR1, app.stopping.stop_soon)
        loop.add_signal_handler(signal.SIGUSR2, stop_within_a_transaction, app.stopping)
        (directory() / f"ready-{os.getpid()}").touch()
        bearing = asyncio.create_task(bear(app, options.births))
        await over.wait()
        bearing.cancel()
        await asyncio.gather(bearing, return_exceptions=True)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser()
    found.add_argument("url")
    found.add_argument("--births", type=int, default=0)
    found.add_argument("--busy", type=float, default=30)
    found.add_argument("--lease", type=float, default=0.8)
    found.add_argument("--idle", type=float, default=0.3)
    return found


if __name__ == "__main__":
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(name)s %(message)s"
    )
    # Before any other thread is made: each of them inherits it, so that none takes the signal that `stop_myself` waits for.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
    asyncio.run(main(parser().parse_args()))
