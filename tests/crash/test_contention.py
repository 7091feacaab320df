"""Other programs use the file too: one that holds its lock, one that reads for long, one that rewrites or copies all of it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import chaos_flow
import pytest
from chaos_bench import Fleet, soon
from chaos_file import another, every_lease_is_over, hold, length_of_log, rows_in, snapshot
from chaos_load import PRINCIPAL
from chaos_scene import play

import outlast
from outlast.app import SystemClock, SystemRandom
from outlast.client import Client
from outlast.store.sqlite.connection import SQLiteOptions
from outlast.store.sqlite.store import open_sqlite

pytestmark = pytest.mark.slow

MEGABYTE = 1024 * 1024


def scene(
    directory: Path,
    trouble: Callable[[Fleet], Awaitable[None]],
    *options: str,
    pause: float = 0.05,
    calm: Callable[[Fleet], Awaitable[None]] | None = None,
) -> str:
    """Let two workers live through trouble with the file, check everything, and return their log."""
    with Fleet.opened(directory, *options) as fleet:

        async def at_rest() -> None:
            if calm is not None:
                await calm(fleet)

        asyncio.run(play(fleet, lambda _: trouble(fleet), pause=pause, calm=at_rest))
        return fleet.log.read_text()


@pytest.mark.parametrize("mode", ["IMMEDIATE", "EXCLUSIVE"])
def test_a_lock_that_is_held_in_slices_costs_time_only(tmp_path: Path, mode: str) -> None:
    """Another program holds the write lock again and again, each time for less than a lease."""

    async def trouble(fleet: Fleet) -> None:
        with another(fleet.file) as connection:
            for _ in range(6):
                await hold(connection, mode)
                await asyncio.sleep(0.25)
                connection.execute("ROLLBACK")
                await asyncio.sleep(0.05)

    scene(tmp_path, trouble)


@pytest.mark.parametrize("busy", ["30", "0.2"], ids=["all wait", "all are told"])
def test_a_lock_that_outlasts_every_lease_loses_nothing(tmp_path: Path, busy: str) -> None:
    """Every worker loses its lease while another program holds the file, and begins a new life afterwards."""

    async def trouble(fleet: Fleet) -> None:
        await asyncio.sleep(0.5)
        with another(fleet.file) as connection:
            await hold(connection, "EXCLUSIVE")
            await every_lease_is_over(fleet.file)
            connection.execute("ROLLBACK")

    words = scene(tmp_path, trouble, "--busy", busy)
    assert "its lease is over" in words
    assert ("held by another process" in words) is (busy != "30")


def test_a_worker_that_stands_still_with_the_lock_loses_nothing(tmp_path: Path) -> None:
    """A worker is stopped in the middle of a write transaction until every lease is over, its own and those of the others."""

    async def trouble(fleet: Fleet) -> None:
        for process in fleet.slots:
            await fleet.stop(process, signal.SIGUSR2)
            await every_lease_is_over(fleet.file)
            process.send_signal(signal.SIGCONT)

    assert "its lease is over" in scene(tmp_path, trouble)


def test_a_long_reader_does_not_make_the_log_grow_for_ever(tmp_path: Path) -> None:
    """Behind a snapshot the log grows, as it must; once that is gone, and the load with it, the log is emptied."""

    async def trouble(fleet: Fleet) -> None:
        with snapshot(fleet.file):
            await soon(lambda: length_of_log(fleet.file) > 5 * MEGABYTE, "the log grows")

    async def calm(fleet: Fleet) -> None:
        await soon(lambda: length_of_log(fleet.file) == 0, "the log is emptied")

    # A long lease: renewals write too.
    scene(tmp_path, trouble, "--lease", "15", pause=0.0, calm=calm)


def test_rewriting_and_copying_the_file_disturbs_nobody(tmp_path: Path) -> None:
    """VACUUM, a copy by VACUUM INTO and an online backup under load: each copy is sound and whole, and nobody hears of it."""
    copies = [tmp_path / f"copy-{number}.db" for number in range(6)]

    async def trouble(fleet: Fleet) -> None:
        with another(fleet.file) as connection:
            for into, backup in zip(copies[::2], copies[1::2], strict=True):
                await asyncio.to_thread(connection.execute, "VACUUM")
                await asyncio.to_thread(connection.execute, "VACUUM INTO ?", (str(into),))
                await asyncio.to_thread(back_up, connection, backup)

    scene(tmp_path, trouble)
    counts = []
    for copy in copies:
        with another(copy) as connection:
            assert connection.pragma("integrity_check") == "ok"
            assert list(connection.execute("PRAGMA foreign_key_check")) == []
            counts.append(connection.execute("SELECT count(*) FROM entry").get)
    assert counts == sorted(counts)


def back_up(connection: apsw.Connection, target: Path) -> None:
    """Copy the file, some pages at a time."""
    with another(target) as copy, copy.backup("main", connection, "main") as backup:
        while not backup.done:
            backup.step(20)


def test_a_client_is_told_that_the_file_is_held(tmp_path: Path) -> None:
    """Start, message and cancel say so with a hint, write nothing, and succeed when they are done again."""

    async def main() -> None:
        options = SQLiteOptions(busy_timeout=timedelta(seconds=0.05))
        store = await open_sqlite(tmp_path / "agent.db", clock=SystemClock(), options=options)
        client = Client(store, random=SystemRandom(), principal=PRINCIPAL)
        handle = client.handle("x")
        acts: list[Callable[[], Awaitable[Any]]] = [
            lambda: client.start(chaos_flow.chaos_collect(3), id="x"),
            lambda: handle.send(chaos_flow.ChaosGo, 1, id="one"),
            lambda: handle.cancel(),
        ]
        try:
            with another(tmp_path / "agent.db") as connection:
                for act in acts:
                    await told_and_done_again(connection, act)
        finally:
            await store.close()

    asyncio.run(main())


async def told_and_done_again(
    connection: apsw.Connection, act: Callable[[], Awaitable[Any]]
) -> None:
    """Do it while the file is held, and then when it is not."""
    before = rows_in(connection)
    connection.execute("BEGIN EXCLUSIVE")
    with pytest.raises(outlast.StoreUnavailableError, match="held by another process") as caught:
        await act()
    connection.execute("ROLLBACK")
    assert caught.value.hint
    assert rows_in(connection) == before
    await act()
    assert rows_in(connection) != before
