"""A worker on PostgreSQL in a process of its own: like that of `chaos_process`, and its machine's wall clock may be wrong.

    python postgres_process.py URL [--off SECONDS]

It waits for a server that does not answer when it starts, as whoever starts workers would have it. Its connections bear its name, so that the
server can note who wrote what. On SIGUSR2 it stops itself while it holds its rows in an open transaction.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import threading
from datetime import datetime, timedelta
from typing import Any

from chaos_process import ChaosApp, bear, directory, parser, stop_myself
from postgres_audit import worker_name

from outlast.app import SystemClock
from outlast.errors import StoreUnavailableError
from outlast.store.postgres.setting import read_setting
from outlast.store.postgres.store import open_postgres

_PAUSE_SECONDS = 0.1


class PostgresApp(ChaosApp):
    """The app, on a server."""

    async def open_store(self) -> Any:
        """Connect, under the process's own name."""
        assert self._url is not None
        join = "&" if "?" in self._url else "?"
        url = f"{self._url}{join}application_name={worker_name(os.getpid())}"
        return await open_postgres(read_setting(url), clock=SystemClock())


def stop_within_a_transaction(app: PostgresApp) -> None:
    """Stop the whole process, from the event loop, while its thread that writes holds the worker's row and those of its runs."""
    loop, store = asyncio.get_running_loop(), app.stopping
    went_on = threading.Event()

    def stop() -> None:
        stop_myself()
        went_on.set()

    def hold() -> None:
        session = store._writer
        with session.guarded():
            for statement in (
                "BEGIN",
                "SELECT 1 FROM $s.worker WHERE worker = %b FOR NO KEY UPDATE",
                "SELECT 1 FROM $s.run WHERE owner = %b ORDER BY tenant, run_id FOR UPDATE",
            ):
                session.send(statement, [app.worker.id] if "%b" in statement else [])
            loop.call_soon_threadsafe(stop)
            went_on.wait()
            session.send("ROLLBACK")

    store._writing.submit(hold, urgent=True)


async def opened(options: argparse.Namespace, stack: contextlib.AsyncExitStack) -> PostgresApp:
    """Open the store and start the worker, once the server answers."""
    while True:
        try:
            return await stack.enter_async_context(PostgresApp(options))
        except StoreUnavailableError as error:
            logging.getLogger("outlast.chaos").info("not yet: %s", error)
            await asyncio.sleep(_PAUSE_SECONDS)


async def main(options: argparse.Namespace) -> None:
    """Work until SIGTERM."""
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, over.set)
    async with contextlib.AsyncExitStack() as stack:
        app = await opened(options, stack)
        loop.add_signal_handler(signal.SIGUSR1, app.stopping.stop_soon)
        loop.add_signal_handler(signal.SIGUSR2, stop_within_a_transaction, app)
        (directory() / f"ready-{os.getpid()}").touch()
        bearing = asyncio.create_task(bear(app, options.births))
        await over.wait()
        bearing.cancel()
        await asyncio.gather(bearing, return_exceptions=True)


def set_off(by: timedelta) -> None:
    """Let this process take the machine's wall clock for another time."""
    right = SystemClock.now

    def now(self: SystemClock) -> datetime:
        return right(self) + by

    SystemClock.now = now


if __name__ == "__main__":
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(name)s %(message)s"
    )
    # Before any other thread is made; see `chaos_process`.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
    found = parser()
    found.add_argument("--off", type=float, default=0.0)
    given = found.parse_args()
    set_off(timedelta(seconds=given.off))
    asyncio.run(main(given))
