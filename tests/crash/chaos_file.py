"""The database file, as other programs on the machine use it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import apsw
from chaos_bench import Fleet, soon
from chaos_load import PRINCIPAL

from outlast.app import SystemClock, SystemRandom
from outlast.client import Client
from outlast.store.sqlite.store import open_sqlite


@contextlib.contextmanager
def another(file: Path) -> Iterator[apsw.Connection]:
    """Open the file as another program would."""
    connection = apsw.Connection(str(file))
    connection.set_busy_timeout(10_000)
    try:
        yield connection
    finally:
        connection.close()


@contextlib.contextmanager
def snapshot(file: Path) -> Iterator[apsw.Connection]:
    """Read, and go on reading what was there then."""
    with another(file) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM run").get is not None
        yield reader


@contextlib.asynccontextmanager
async def client_on(fleet: Fleet) -> AsyncIterator[Client]:
    """Open a client on the clock of all processes."""
    store = await open_sqlite(fleet.file, clock=fleet.clock)
    try:
        yield Client(store, random=SystemRandom(), principal=PRINCIPAL)
    finally:
        await store.close()


async def hold(connection: apsw.Connection, mode: str) -> None:
    """Take the write lock, in a thread: others are waited for."""
    await asyncio.to_thread(connection.execute, f"BEGIN {mode}")


async def every_lease_is_over(file: Path) -> None:
    """Wait until no lease runs any more."""
    with another(file) as reader:

        def over() -> bool:
            now = SystemClock().monotonic() * 1_000_000_000
            ends = [one for (one,) in reader.execute("SELECT renewed + lease * 1000 FROM worker")]
            return bool(ends) and max(ends) < now

        await soon(over, "every lease is over")


def length_of_log(file: Path) -> int:
    """Return how many bytes the write-ahead log is long."""
    log = Path(f"{file}-wal")
    return log.stat().st_size if log.exists() else 0


def rows_in(connection: apsw.Connection) -> list[int]:
    """Return how many rows the tables hold that a client writes."""
    return [
        connection.execute(f"SELECT count(*) FROM {table}").get
        for table in ("run", "entry", "message", "approval")
    ]
