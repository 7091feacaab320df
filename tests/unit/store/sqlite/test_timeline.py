"""A file that was put back to an earlier state is told from one that goes on, wherever the copy comes from."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import shutil
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

from outlast.errors import StoreUnavailableError
from outlast.store.change import Release, RunKey, WorkerId
from outlast.store.restoration import EVERYBODY, RESTORATION, Releases
from outlast.store.sqlite.backup import back_up, put_back
from outlast.store.sqlite.store import open_sqlite
from outlast.store.sqlite.timeline import Seen
from outlast.testing.conformance.bench import Bench, ManualClock, following, starting

LONG = timedelta(hours=1)


@contextlib.asynccontextmanager
async def opened(path, clock=None):
    """Open a file."""
    clock = clock or ManualClock()
    store = await open_sqlite(path, clock=clock)
    try:
        yield Bench(store, clock)
    finally:
        await store.close()


def copy(source, target):
    """Copy a database that nobody has open, as `cp` does: over what is there."""
    shutil.copyfile(source, target)
    for suffix in ("-wal", "-shm"):
        Path(f"{target}{suffix}").unlink(missing_ok=True)


async def filled(path, *runs):
    """Start runs in a file, and return its line of history."""
    async with opened(path) as bench:
        for run in runs:
            await bench.start(run)
        return await bench.store.timeline()


async def state(path):
    """Open a file, and return its line of history, and what it says of restores."""
    async with opened(path) as bench:
        row = Releases.of(await bench.store.control(EVERYBODY, RESTORATION))
        return await bench.store.timeline(), row


def test_a_file_that_goes_on_keeps_its_history(tmp_path):
    """Opened again, by one or by two, after commits and after none, it is the same line, and nothing is held."""

    async def test():
        path = tmp_path / "s.db"
        first = await filled(path, "a")
        assert await state(path) == (first, Releases())
        async with opened(path) as one, opened(path) as other:
            for number in range(20):
                await one.start(f"one{number}")
                await other.start(f"other{number}")
        assert await state(path) == (first, Releases())

    asyncio.run(test())


@pytest.mark.parametrize("commits", [1, 7])
def test_a_copy_that_comes_back_is_older(commits, tmp_path):
    """One commit that is missing is enough: a new line begins, and everything that is open is held. The next opening finds it so."""

    async def test():
        path = tmp_path / "s.db"
        before = await filled(path, "old")
        copy(path, tmp_path / "copy.db")
        await filled(path, *(f"new{number}" for number in range(commits)))
        copy(tmp_path / "copy.db", path)
        async with opened(path) as bench:
            after = await bench.store.timeline()
            assert (await bench.head(RunKey("default", "old"))).restored is not None
        assert after != before
        again, row = await state(path)
        assert (again, row.held) == (after, True)
        assert row.restored.why == (
            f"the file is older than what was seen here ({commits} commits are missing)"
        )
        # What lies two restores back is known, too.
        copy(tmp_path / "copy.db", path)
        third, row = await state(path)
        assert third not in {before, after}
        assert row.restored.former == before

    asyncio.run(test())


def test_what_was_seen_is_known_after_a_kill(tmp_path):
    """A process that ends without closing has left word of its last commit."""

    async def test():
        path = tmp_path / "s.db"
        await filled(path, "old")
        copy(path, tmp_path / "copy.db")
        store = await open_sqlite(path, clock=ManualClock())
        await Bench(store, ManualClock()).start("new")
        seen = Seen(str(path)).marks()
        await store.abandon()
        assert Seen(str(path)).marks() == seen
        copy(tmp_path / "copy.db", path)
        assert (await state(path))[1].held

    asyncio.run(test())


def test_a_new_file_in_the_place_of_an_old_one_is_no_restore(tmp_path):
    """Who deletes a database begins another one: nothing of it is held."""

    async def test():
        path = tmp_path / "s.db"
        first = await filled(path, "a", "b")
        path.unlink()
        second, row = await state(path)
        assert (second != first, row) == (True, Releases())

    asyncio.run(test())


def test_a_copy_at_another_place_is_told_of_where_nothing_says_more(tmp_path, caplog):
    """Nothing beside it says how far the file had come: it goes on, with a warning that says what to do. A backup needs none."""

    async def test():
        path, other = tmp_path / "s.db", tmp_path / "other.db"
        first = await filled(path, "a")
        assert "outlast restore --here" not in caplog.text
        copy(path, other)
        assert await state(other) == (first, Releases())
        assert "outlast restore --here" in caplog.text

    asyncio.run(test())


@pytest.mark.parametrize("data", [b"", b"\xff" * 200, b"x 1\n", b"a" * 64, b" " * 64_000])
def test_damage_beside_the_file_invents_no_restore(data, tmp_path):
    """What is remembered there only hides a restore when it is lost."""

    async def test():
        path = tmp_path / "s.db"
        first = await filled(path, "a")
        Path(f"{path}-workers", "seen").write_bytes(data)
        assert await state(path) == (first, Releases())
        await filled(path, "b")
        assert await state(path) == (first, Releases())

    asyncio.run(test())


def test_a_backup_is_whole_while_others_write(tmp_path):
    """Each backup holds all commits up to one moment: of changes that are written together all or none."""

    async def test():
        path = tmp_path / "s.db"
        async with opened(path) as bench:
            worker = await bench.worker(lease=LONG)
            heads = [await bench.head(await bench.start(one, worker=worker)) for one in "ab"]
            for number in range(5):
                writes = asyncio.ensure_future(
                    bench.store.commit([following(head) for head in heads])
                )
                back_up(str(path), str(tmp_path / f"{number}.db"), bench.clock)
                await writes
                heads = [await bench.head(head.run) for head in heads]
        for number in range(5):
            async with opened(tmp_path / f"{number}.db") as bench:
                versions = {(await bench.head(head.run)).version for head in heads}
                assert versions in ({number}, {number + 1})

    asyncio.run(test())


def test_a_backup_is_one_file_that_knows_what_it_is(tmp_path):
    """The first that opens it for work begins a new line of history, wherever it lies; a second copy of it begins another one."""

    async def test():
        path, file = tmp_path / "s.db", tmp_path / "b" / "b.db"
        file.parent.mkdir()
        first = await filled(path, "a")
        told = back_up(str(path), str(file), ManualClock())
        assert (told.timeline, told.runs, told.open_runs) == (first, 1, 1)
        assert told.size_bytes == file.stat().st_size
        assert sorted(one.name for one in file.parent.iterdir()) == ["b.db"]
        assert file.stat().st_mode & 0o777 == 0o600
        copy(file, tmp_path / "c.db")
        lines = {first}
        for one in (file, tmp_path / "c.db"):
            line, row = await state(one)
            lines.add(line)
            assert row.held
            assert row.restored.why.startswith("the file is a backup of 2026-03-01")
            assert (await state(one))[0] == line
        assert len(lines) == 3
        assert await state(path) == (first, Releases())

    asyncio.run(test())


def test_a_backup_takes_the_place_of_nothing(tmp_path):
    """A file that exists is left as it is, and nothing half made stays behind, whatever fails."""

    async def test():
        path = tmp_path / "s.db"
        await filled(path, "a")
        (tmp_path / "there").write_text("mine")
        (tmp_path / "text.db").write_text("no database " * 100)
        with pytest.raises(StoreUnavailableError, match="there is a file at"):
            back_up(str(path), str(tmp_path / "there"), ManualClock())
        with pytest.raises(StoreUnavailableError, match="no database at"):
            back_up(str(tmp_path / "none.db"), str(tmp_path / "b.db"), ManualClock())
        with pytest.raises(StoreUnavailableError, match="no folder"):
            back_up(str(path), str(tmp_path / "none" / "b.db"), ManualClock())
        with pytest.raises(Exception, match="database"):
            back_up(str(tmp_path / "text.db"), str(tmp_path / "b.db"), ManualClock())
        assert (tmp_path / "there").read_text() == "mine"
        names = {one.name for one in tmp_path.iterdir()}
        assert names == {"s.db", "s.db-workers", "there", "text.db"}

    asyncio.run(test())


def test_a_restore_takes_the_place_of_what_is_kept(tmp_path):
    """The database of before is kept with all that was in it; what is restored is held, and the backup can be used again."""

    async def test():
        path, file = tmp_path / "s.db", tmp_path / "b.db"
        await filled(path, "old")
        back_up(str(path), str(file), ManualClock())
        data = file.read_bytes()
        before = await filled(path, "new")
        with pytest.raises(StoreUnavailableError, match="there is a database at"):
            put_back(str(file), str(path), ManualClock(), replace=False)
        told = put_back(str(file), str(path), ManualClock(), replace=True)
        assert file.read_bytes() == data
        line, row = await state(path)
        assert (line, row.held, row.restored.former) == (told.timeline, True, before)
        async with opened(path) as bench:
            assert [one.run.run_id for one in await bench.store.heads("default")] == ["old"]
        async with opened(told.kept) as bench:
            assert len(await bench.store.heads("default")) == 2
            assert await bench.store.timeline() == before

    asyncio.run(test())


def test_a_database_in_use_is_not_replaced(tmp_path):
    """Whoever has it open is named, or at least told of, and nothing is changed."""

    async def test():
        path, file = tmp_path / "s.db", tmp_path / "b.db"
        await filled(path, "old")
        back_up(str(path), str(file), ManualClock())
        async with opened(path) as bench:
            with pytest.raises(StoreUnavailableError, match="somebody has"):
                put_back(str(file), str(path), ManualClock(), replace=True)
            await bench.worker("w-1")
            with pytest.raises(StoreUnavailableError, match="workers that live use .*: w-1"):
                put_back(str(file), str(path), ManualClock(), replace=True)
            await bench.store.retire(WorkerId("w-1"))
            await bench.start("new")
        assert await state(path) == (await filled(path), Releases())
        assert sorted(one.name for one in tmp_path.iterdir()) == ["b.db", "s.db", "s.db-workers"]

    asyncio.run(test())


@pytest.mark.parametrize("moment", ["aside", "log", "between", "placed"])
def test_a_restore_that_is_cut_off_is_none_or_is_seen(moment, tmp_path, monkeypatch):
    """Killed at any line of it, the database is the one of before with all that was in it, or one that is held."""

    class KilledError(BaseException):
        pass

    real = Path.replace

    def killed(self, target):
        is_log = str(self).endswith("-wal")
        if moment == "log" and is_log:
            real(self, target)
            raise KilledError
        if (moment == "aside" and is_log) or (moment == "between" and not is_log):
            raise KilledError
        found = real(self, target)
        if moment == "placed" and not is_log:
            raise KilledError
        return found

    async def test():
        path, file = tmp_path / "s.db", tmp_path / "b.db"
        first = await filled(path, "old")
        back_up(str(path), str(file), ManualClock())
        store = await open_sqlite(path, clock=ManualClock())
        await Bench(store, ManualClock()).start("new")
        # As after a kill: the log is there, and nobody has it open.
        lost = {one: Path(f"{path}{one}").read_bytes() for one in ("", "-wal")}
        await store.close()
        for suffix, data in lost.items():
            Path(f"{path}{suffix}").write_bytes(data)
        monkeypatch.setattr("outlast.store.sqlite.backup._refuse_used", lambda _: None)
        monkeypatch.setattr(Path, "replace", killed)
        with pytest.raises(KilledError):
            put_back(str(file), str(path), ManualClock(), replace=True)
        monkeypatch.undo()
        line, row = await state(path)
        assert row.held or line == first
        assert row.held == (moment != "aside")
        async with opened(path) as bench:
            runs = {one.run.run_id for one in await bench.store.heads("default")}
            assert runs == ({"old"} if row.held else {"old", "new"})

    asyncio.run(test())


def test_the_look_of_a_paused_worker_reads_nothing_of_what_is_held(tmp_path):
    """Its cost is that of what is released, however many other runs are due."""

    async def test():
        steps = []
        async with opened(tmp_path / "s.db") as bench:
            worker = await bench.worker(lease=LONG)
            for amount in (1, 3000):
                await bench.store.commit(
                    [starting(f"{amount}-{number}") for number in range(amount)]
                )
                run = RunKey("default", f"{amount}-0")
                await bench.apply(Release(run))
                count = 0

                def step():
                    nonlocal count
                    count += 1
                    return False

                connection = bench.store._writer._connection
                connection.set_progress_handler(step, 10)
                claim = await bench.store.claim(worker, frozenset({"fix"}), 10, released=True)
                connection.set_progress_handler(None)
                assert [one.head.run for one in claim.runs] == [run]
                steps.append(count)
        return steps

    few, many = asyncio.run(test())
    assert many <= few + 3


def descriptors():
    """Return how many files this process has open, as far as the system says."""
    gc.collect()
    place = Path("/proc/self/fd")
    return sum(1 for _ in place.iterdir()) if place.exists() else 0


def test_nothing_is_left_open(tmp_path):
    """What remembers the marks is closed with the store."""

    async def test():
        await filled(tmp_path / "s.db", "a")
        before = descriptors()
        for _ in range(5):
            await filled(tmp_path / "s.db")
        assert descriptors() <= before

    asyncio.run(test())


def test_a_damaged_row_of_releases_is_replaced(tmp_path):
    """A store is put back whatever stood in the row that says so."""

    async def test():
        path = tmp_path / "s.db"
        await filled(path, "a")
        file = apsw.Connection(str(path))
        file.execute("REPLACE INTO control VALUES ('', 'restoration', 3, x'ff')")
        file.close()
        async with opened(path) as bench:
            await bench.store.begin_timeline("a test")
            version, body = await bench.store.control(EVERYBODY, RESTORATION)
            assert (version, Releases.decode(body).held) == (4, True)

    asyncio.run(test())
