"""No room to write: by a limit on the size of files, and on a small disk that is really full.

A snapshot that the test holds keeps the write-ahead log from being emptied, which would make room by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import chaos_flow
import pytest
from chaos_bench import Fleet, soon
from chaos_check import check_file, check_replay
from chaos_file import another, client_on, every_lease_is_over, rows_in, snapshot
from chaos_load import Load
from chaos_scene import ERRORS, play
from crash_bench import check_journal

import outlast
from outlast.client import Client
from outlast.journal.entry import EffectCompleted, from_row
from outlast.store.change import RunKey, Status
from outlast.store.protocol import RunImage
from outlast.store.sqlite.store import SQLiteStore

REFUSALS = ("no space is left", "the disk refused")
EFFECTS = ("brim_pay", "brim_order", "brim_transfer")
UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """Mount a small disk in memory, where that is allowed."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextlib.contextmanager
def fleet_on(kind: str, directory: Path, *options: str) -> Iterator[Fleet]:
    """Make a fleet whose disk can become full in this way."""
    with contextlib.ExitStack() as stack:
        disk = (
            stack.enter_context(small_disk(directory / "disk", "4m")) if kind == "space" else None
        )
        yield stack.enter_context(Fleet.opened(directory, *options, disk=disk))


def make_room(fleet: Fleet) -> None:
    """Let everyone write again."""
    Path(os.environ[chaos_flow.BALLAST] or fleet.directory / "ballast").unlink(missing_ok=True)
    for process in fleet.slots:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, UNLIMITED)


def refused(fleet: Fleet) -> bool:
    """Whether a worker was told that there is no room."""
    return any(word in fleet.log.read_text() for word in REFUSALS)


async def image_of(store: SQLiteStore, run_id: str) -> RunImage:
    """Return all that is stored of a run."""
    image = await store.load(RunKey("default", run_id))
    assert image is not None
    return image


def kinds_of(image: RunImage) -> list[str]:
    """Return the kinds of a run's entries."""
    return [one.row.kind for one in image.rows]


FULL = pytest.mark.parametrize("kind", ["limit", "space"])
BEFORE = ["started", "taken", "step_completed", *["effect_intended"] * 3]


@FULL
@pytest.mark.parametrize("lease", ["15", "0.8"], ids=["within the lease", "past the lease"])
def test_outcomes_that_cannot_be_recorded(tmp_path: Path, kind: str, lease: str) -> None:
    """Three effects acted, and stay intended: room within the lease records what they returned, room after it tells that to the run."""
    with fleet_on(kind, tmp_path, "--lease", lease) as fleet:
        asyncio.run(_brim(fleet, kind, late=lease != "15"))
        check_file(fleet.file)
        words = fleet.log.read_text()
    assert not [word for word in ERRORS if word in words]


async def _brim(fleet: Fleet, kind: str, *, late: bool) -> None:
    async with client_on(fleet) as client:
        store = client.store
        assert isinstance(store, SQLiteStore)
        await fleet.start(1)
        with snapshot(fleet.file):
            for number in range(20):  # a log that is longer than all other files
                await client.run(chaos_flow.chaos_collect(0), id=f"before-{number}")
            handle = await client.start(chaos_flow.chaos_brimful("x"), id="x")
            await soon(lambda: refused(fleet), "the worker is told")
            if late:
                await every_lease_is_over(fleet.file)
            image = await image_of(store, "x")
            assert kinds_of(image) == BEFORE
            assert image.head.status is Status.RUNNING
            if kind == "space":
                await _ask_in_vain(client, fleet)
            make_room(fleet)
        result = await asyncio.wait_for(handle.result(), 40)
        assert result == [1, *(f"{body} x" for body in EFFECTS), 2]
        await fleet.end()
        await _check_brim(store, fleet, late=late)


async def _ask_in_vain(client: Client, fleet: Fleet) -> None:
    """A client is told with a hint, and leaves nothing."""
    with another(fleet.file) as reader:
        before = rows_in(reader)
        with pytest.raises(outlast.StoreUnavailableError, match="no space is left") as caught:
            await client.start(chaos_flow.chaos_collect(0), id="in vain")
        assert caught.value.hint
        with pytest.raises(outlast.StoreUnavailableError, match="no space is left"):
            await client.handle("x").cancel()
        assert rows_in(reader) == before
    with pytest.raises(outlast.RunNotFoundError):
        await client.handle("in vain").status()


async def _check_brim(store: SQLiteStore, fleet: Fleet, *, late: bool) -> None:
    image = await image_of(store, "x")
    assert kinds_of(image)[: len(BEFORE)] == BEFORE
    check_journal(image.rows)
    entries = [from_row(one.row) for one in image.rows]
    await check_replay(store, fleet.clock, image, entries)
    sources = {
        one.name.removeprefix("chaos_"): one.source
        for one in entries
        if isinstance(one, EffectCompleted)
    }
    ways = ("late" if late else "attempt",) * 3
    assert sources == dict(zip(EFFECTS, ways, strict=True))
    acts = {body: chaos_flow.acts(body, "x") for body in EFFECTS}
    assert [len(acts[body]) for body in EFFECTS] == [1, 1, 1]
    assert len({one["key"] for one in acts["brim_pay"]}) == 1


def test_two_workers_without_room_under_load(tmp_path: Path) -> None:
    """Both workers may write no more; one is allowed to again, the other is killed and replaced: nothing is lost or doubled."""

    async def trouble(fleet: Fleet, _: Load) -> None:
        with snapshot(fleet.file):
            log = Path(f"{fleet.file}-wal")
            await soon(lambda: log.exists() and log.stat().st_size > 2**20, "the log grows")
            for process in fleet.slots:
                limit = (log.stat().st_size, resource.RLIM_INFINITY)
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limit)
            await soon(lambda: refused(fleet), "a worker is told")
            await every_lease_is_over(fleet.file)
        fleet.slots[0].kill()
        fleet.slots[0] = fleet.launch()
        resource.prlimit(fleet.slots[1].pid, resource.RLIMIT_FSIZE, UNLIMITED)

    with Fleet.opened(tmp_path) as fleet:
        asyncio.run(play(fleet, lambda load: trouble(fleet, load)))


@pytest.mark.parametrize("room", ["for nothing", "for the schema"])
def test_opening_without_room(tmp_path: Path, room: str) -> None:
    """A new file, or one that was closed, on a full disk: opened, or refused with a hint; and usable when there is room."""

    async def main(disk: Path) -> None:
        file, ballast = disk / "agent.db", disk / "ballast"
        url = f"sqlite:///{file}"
        if room == "for the schema":
            async with outlast.connect(url, create=True) as client:
                await client.start(chaos_flow.chaos_collect(0), id="x")
        with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as filling:
            while True:
                filling.write(bytes(4096))
        with pytest.raises(outlast.StoreUnavailableError) as caught:
            async with outlast.connect(url, create=True) as client:
                await client.start(chaos_flow.chaos_collect(0), id="y")
        assert caught.value.hint
        ballast.unlink()
        async with outlast.connect(url, create=True) as client:
            await client.start(chaos_flow.chaos_collect(0), id="y")
            runs = {one.run_id for one in await client.runs.list()}
        assert runs == ({"x", "y"} if room == "for the schema" else {"y"})
        with another(file) as connection:
            assert connection.pragma("integrity_check") == "ok"

    with small_disk(tmp_path / "disk", "1m") as disk:
        asyncio.run(main(disk))
