"""A SQLite store on a real file: every reason to refuse, group commit, hints, the end."""

import asyncio
import gc
import threading
from datetime import timedelta
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from outlast.errors import StoreCorruptError, StoreUnavailableError, StoreVersionError
from outlast.store.change import (
    Applied,
    Message,
    MessageKind,
    RunKey,
    Terminate,
    Unknown,
    WorkerId,
    WorkerRow,
)
from outlast.store.notice import TakeNotices
from outlast.store.sqlite import connection as connection_module
from outlast.store.sqlite import read as read_module
from outlast.store.sqlite import store as store_module
from outlast.store.sqlite.connection import APPLICATION_ID, SQLiteOptions
from outlast.store.sqlite.store import open_sqlite
from outlast.testing.conformance import Bench, ManualClock
from outlast.testing.conformance.approval import deciding, requested, spending
from outlast.testing.conformance.bench import (
    LEASE,
    WORKFLOWS,
    asking,
    following,
    parking,
    row,
    sending,
    starting,
)


def opening(path, **fields):
    """Open and close a store, and return where it said it was."""

    async def main():
        store = await open_sqlite(path, clock=ManualClock(), **fields)
        try:
            return store.describe()
        finally:
            await store.close()

    return asyncio.run(main())


def edit(path, *statements):
    """Change a file behind the store's back."""
    other = apsw.Connection(str(path))
    for statement in statements:
        other.execute(statement)
    other.close()
    # It is no backup: what was seen of it goes with what tells how far it is.
    Path(f"{path}-workers", "seen").unlink(missing_ok=True)


def descriptors():
    """Return how many files this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def with_bench(path, test, **fields):
    """Run `test(bench)` on a store at `path`."""

    async def main():
        clock = ManualClock()
        store = await open_sqlite(path, clock=clock, **fields)
        try:
            return await test(Bench(store, clock))
        finally:
            await store.close()

    return asyncio.run(main())


def test_absolute_path_is_told(tmp_path, monkeypatch):
    """Whatever way a file was named, the store says where it really is."""
    monkeypatch.chdir(tmp_path)
    assert opening("s.db") == str((tmp_path / "s.db").resolve())
    assert opening("s.db", create=False) == str((tmp_path / "s.db").resolve())


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_memory_is_no_file(path):
    """A store that would keep nothing is not opened as one that keeps."""
    with pytest.raises(StoreUnavailableError, match="memory://"):
        opening(path)


def test_missing_file_and_folder(tmp_path):
    """A missing file is not made when that was not asked; a missing folder never is."""
    with pytest.raises(StoreUnavailableError, match="no database at"):
        opening(tmp_path / "s.db", create=False)
    with pytest.raises(StoreUnavailableError, match="no folder"):
        opening(tmp_path / "no" / "s.db")
    with pytest.raises(StoreUnavailableError, match="is a folder"):
        opening(tmp_path)


def test_newer_file_is_refused(tmp_path):
    """A file that a newer version has prepared is used as before; one that it has finished is not touched."""
    path = tmp_path / "s.db"
    opening(path)
    newer = "INSERT INTO migration (number, phase, subject, checksum) VALUES (?, ?, 'x', 'y')"
    edit(path, newer.replace("?, ?", "998, 'pre'"))
    opening(path)
    edit(path, newer.replace("?, ?", "999, 'post'"))
    with pytest.raises(StoreVersionError, match=r"s\.db was written by a newer version"):
        opening(path)


def test_changed_migration_is_refused(tmp_path):
    """A file that was migrated with another text is not touched."""
    path = tmp_path / "s.db"
    opening(path)
    edit(path, "UPDATE migration SET checksum = 'other'")
    with pytest.raises(StoreCorruptError, match="another text of 0001"):
        opening(path)


OPERATION_LATER = ("beats", "heard_at", "silence", "begun_at", "in_doubt")
OUTBOX_LATER = ("generation", "operation", "target_generation", "origin", "reason")
WITHOUT_FIGURES = ("DROP INDEX run_lapsed", "ALTER TABLE worker DROP COLUMN report")
"""Makes a file one of before workers reported; its list of migrations apart. So do the others."""
WITHOUT_VOTES = (
    *WITHOUT_FIGURES,
    "DROP INDEX approval_of_run; DROP INDEX approval_listed; DROP INDEX approval_pending",
    "CREATE INDEX approval_pending ON approval (tenant, requested_at) WHERE state = 'pending'",
    *(f"ALTER TABLE approval DROP COLUMN {name}" for name in ("terms", "kind", "persons", "votes")),
    "ALTER TABLE message DROP COLUMN result",
)
"""Makes a file one of before requests had terms; its list of migrations apart."""


WITHOUT_TIMELINE = (
    "DROP INDEX run_released_due; DROP INDEX run_released_due_set; ALTER TABLE worker DROP COLUMN paused",
    *(
        f"ALTER TABLE run DROP COLUMN {one}"
        for one in ("released", "restored_at", "restored_until")
    ),
    *(f"ALTER TABLE store DROP COLUMN {one}" for one in ("mark", "backed_up_at")),
)
"""Makes a file one of before it knew of restores; its list of migrations apart."""


def test_file_of_the_first_schema_goes_on(tmp_path):
    """A file that knows only the first migration gets the others, and its runs wait and are taken as before."""
    path = tmp_path / "s.db"

    async def fill(bench):
        head = await bench.owned("parked")
        await bench.start("ready")
        await bench.apply(parking(head, wake_at=bench.clock.now() + timedelta(seconds=5)))
        await bench.store.retire(WorkerId("w1"))

    async def go_on(bench):
        worker = await bench.worker("w2")
        before = [one.head.run.run_id for one in (await bench.claim(worker)).runs]
        bench.clock.advance(timedelta(seconds=5))
        return before, (await bench.claim_one(worker)).run.run_id

    with_bench(path, fill)
    edit(
        path,
        *WITHOUT_TIMELINE,
        "DROP TABLE sticky; DROP TABLE notice; DROP TABLE request; DROP TABLE task; ALTER TABLE worker DROP COLUMN queues",
        "DROP INDEX run_due; DROP INDEX run_due_set; ALTER TABLE run DROP COLUMN unfit",
        "CREATE INDEX run_due ON run (workflow, due) WHERE due IS NOT NULL",
        "ALTER TABLE run DROP COLUMN due_set_at; DELETE FROM migration WHERE number > 1",
        "DROP INDEX entry_published",
        "DROP INDEX message_update; ALTER TABLE message DROP COLUMN answer; ALTER TABLE run DROP COLUMN ending",
        "ALTER TABLE operation DROP COLUMN progress; ALTER TABLE operation DROP COLUMN awaits",
        "ALTER TABLE operation DROP COLUMN unapplied",
        "DROP INDEX operation_doubt",
        *(f"ALTER TABLE operation DROP COLUMN {name}" for name in OPERATION_LATER),
        "ALTER TABLE run DROP COLUMN incarnation; ALTER TABLE message DROP COLUMN digest",
        "DROP TABLE watch; ALTER TABLE run DROP COLUMN origin; ALTER TABLE run DROP COLUMN outbox_number",
        *(f"ALTER TABLE outbox DROP COLUMN {name}" for name in OUTBOX_LATER),
        *WITHOUT_VOTES,
    )
    assert with_bench(path, go_on) == (["ready"], "parked")


def test_file_of_before_votes_goes_on(tmp_path):
    """What an older library asked needs one yes, as it did; what was decided then, and the message that says so, are read as they are."""
    path = tmp_path / "s.db"

    async def fill(bench):
        head = await requested(bench)
        await bench.apply(following(head, approvals=(asking(bench.clock, "a2"),)))
        await bench.apply(deciding(head.run))

    async def go_on(bench):
        (waiting,) = await bench.store.approvals("default")
        image = await bench.store.load(waiting.run)
        assert [(row.put.approval_id, row.state, row.by) for row in image.approvals] == [
            ("a1", "approved", "bob"),
            ("a2", "pending", ""),
        ]
        for one in image.approvals:
            put = asking(bench.clock, one.put.approval_id)
            assert (one.put, one.votes, put.terms, put.kind) == (put, (), None, "approval")
        assert [one.message.result for one in image.messages] == [""]
        again = Message("d2", MessageKind.DECISION, "a2", "carol", b"{}")
        await bench.apply(deciding(waiting.run, approval_id="a2", by="carol", message=again))
        spends = (spending(), replace(spending(), approval_id="a2"))
        await bench.apply(following(await bench.head(waiting.run), spends=spends))
        image = await bench.store.load(waiting.run)
        assert [one.message.result for one in image.messages] == ["", "approved"]
        return [(row.state, row.spent) for row in image.approvals]

    with_bench(path, fill)
    edit(
        path,
        *WITHOUT_TIMELINE,
        "DROP TABLE sticky; DROP TABLE notice",
        *WITHOUT_VOTES,
        "DELETE FROM migration WHERE number > 13",
    )
    assert with_bench(path, go_on) == [("approved", ("r:2", ""))] * 2


def test_file_of_before_notices_goes_on(tmp_path):
    """Of a request that waited already people are told once; of a decided one they are not."""
    path = tmp_path / "s.db"
    runs = [RunKey("default", "waits"), RunKey("default", "decided")]

    async def fill(bench):
        for run in runs:
            worker = await bench.worker(f"w-{run.run_id}")
            await bench.start(run.run_id, worker=worker)
            head = await bench.head(run)
            await bench.apply(following(head, approvals=(asking(bench.clock),)))
        await bench.apply(deciding(runs[1]))

    async def go_on(bench):
        (taken,) = await bench.store.commit([TakeNotices("", 9, timedelta(seconds=9))])
        return [(due.notice.run_id, due.notice.notice) for due in taken.notices]

    with_bench(path, fill)
    edit(
        path,
        *WITHOUT_FIGURES,
        *WITHOUT_TIMELINE,
        "DROP TABLE sticky; DROP TABLE notice; DELETE FROM migration WHERE number > 14",
    )
    assert with_bench(path, go_on) == [("waits", "asked")]


def test_foreign_database_is_refused_unchanged(tmp_path):
    """A database of something else is refused, and not even its journal mode is changed."""
    path = tmp_path / "s.db"
    edit(path, "CREATE TABLE t (x)")
    before = path.read_bytes()
    with pytest.raises(StoreUnavailableError, match="not one of Outlast"):
        opening(path)
    edit(path, "DROP TABLE t", "PRAGMA application_id = 7")
    with pytest.raises(StoreUnavailableError, match="0x7"):
        opening(path)
    assert before[18:20] == path.read_bytes()[18:20] == b"\x01\x01"


def test_what_is_no_database_is_corrupt(tmp_path):
    """A file of something else, or with a broken page, is an error of its own."""
    path = tmp_path / "s.db"
    path.write_bytes(b"no database at all, but long enough to be read as one" * 100)
    with pytest.raises(StoreCorruptError, match=r"s\.db is damaged"):
        opening(path)


def test_damaged_page_is_corrupt(tmp_path):
    """Damage that shows only when a page is read is told as damage."""
    path = tmp_path / "s.db"

    async def fill(bench):
        await bench.store.commit(
            [starting(f"run-{number}", entries=(row(0, bytes(3000)),)) for number in range(50)]
        )

    async def read(bench):
        for number in range(50):
            await bench.store.journal(RunKey("default", f"run-{number}"))

    with_bench(path, fill)
    content = bytearray(path.read_bytes())
    for page in range(30, len(content) // 4096):
        content[page * 4096 : page * 4096 + 200] = b"\xff" * 200
    path.write_bytes(content)
    with pytest.raises(StoreCorruptError, match=r"s\.db is damaged"):
        with_bench(path, read)


def test_check_only_migrates_nothing(tmp_path):
    """Who may not migrate learns what is missing."""
    with pytest.raises(StoreUnavailableError, match="0001_pre_initial"):
        opening(tmp_path / "s.db", options=SQLiteOptions(check_only=True))
    opening(tmp_path / "s.db")
    opening(tmp_path / "s.db", options=SQLiteOptions(check_only=True))


def test_network_file_system_is_refused(tmp_path, monkeypatch):
    """A network file system is refused, unless someone takes the risk."""
    monkeypatch.setattr(connection_module, "network_filesystem", lambda path: "nfs4")
    with pytest.raises(StoreUnavailableError, match="nfs4") as caught:
        opening(tmp_path / "s.db")
    assert "OUTLAST_ALLOW_NETWORK_FILESYSTEM=1" in caught.value.hint
    opening(tmp_path / "s.db", options=SQLiteOptions(network=True))
    monkeypatch.setenv("OUTLAST_ALLOW_NETWORK_FILESYSTEM", "1")
    opening(tmp_path / "s.db")


def test_file_is_kept_as_promised(tmp_path):
    """The header names Outlast; WAL and full durability are on; only one connection checkpoints."""

    async def look(bench):
        store = bench.store
        names = ("journal_mode", "synchronous", "wal_autocheckpoint", "application_id")
        both = []
        for lane, opened in (
            (store._writing, store._open_writers),
            (store._reading, store._open_readers),
        ):
            both.append(
                await store._on(
                    lane, lambda opened=opened: [opened[0].pragma(name) for name in names]
                )
            )
        return both

    assert with_bench(tmp_path / "s.db", look) == [["wal", 2, 0, APPLICATION_ID]] * 2
    assert not (tmp_path / "s.db-wal").exists()


def test_file_locked_too_long(tmp_path):
    """When another process holds the file, waiting has an end, nothing is written, and work goes on afterwards."""
    path = tmp_path / "s.db"

    async def locked(bench):
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError, match=r"s\.db was held by another process"):
            await bench.store.commit([starting()])
        other.execute("ROLLBACK")
        other.close()
        await bench.start()

    with_bench(path, locked, options=SQLiteOptions(busy_timeout=timedelta(milliseconds=20)))


def test_disk_error_at_commit_is_unknown(tmp_path, monkeypatch):
    """When the disk fails to confirm, nobody is told that it was or was not written."""

    def unconfirmed(writing, changes):
        error = apsw.IOError("fsync")
        error.extendedresult = apsw.SQLITE_IOERR_FSYNC
        raise error

    async def commit(bench):
        with monkeypatch.context() as patched:
            patched.setattr(store_module, "write_all", unconfirmed)
            (verdict,) = await bench.store.commit([starting()])
        await bench.start()
        return verdict

    assert isinstance(with_bench(tmp_path / "s.db", commit), Unknown)


def test_commits_that_wait_share_a_transaction(tmp_path, monkeypatch):
    """Twenty calls at one moment take fewer transactions than calls, and each gets its verdict."""
    sizes = []
    write_all = store_module.write_all

    def counting(writing, changes):
        sizes.append(len(changes))
        return write_all(writing, changes)

    monkeypatch.setattr(store_module, "write_all", counting)

    async def many(bench):
        calls = [bench.store.commit([starting(f"run-{number}")]) for number in range(20)]
        return await asyncio.gather(*calls)

    answers = with_bench(tmp_path / "s.db", many)
    assert all(isinstance(verdict, Applied) for (verdict,) in answers)
    assert sum(sizes) == 20
    assert len(sizes) < 20


def test_restarted_machine_means_lapsed(tmp_path, monkeypatch):
    """After a restart every lease is over, and the former owner stopped at least one uptime ago."""
    path = tmp_path / "s.db"

    async def own(bench):
        await bench.owned()

    async def take(bench):
        (taken,) = (await bench.claim(await bench.worker("w2"))).runs
        return taken

    with_bench(path, own)
    monkeypatch.setattr("outlast.store.moment.boot_id", lambda: "another boot")
    taken = with_bench(path, take)
    assert taken.head.lapses == 1
    assert taken.stopped_ago == timedelta(seconds=5000)


def test_commits_of_others_are_noticed(tmp_path):
    """A subscriber hears of a commit of another store on the same file by polling."""
    path = tmp_path / "s.db"

    async def main():
        options = SQLiteOptions(poll=timedelta(milliseconds=1))
        here = await open_sqlite(path, clock=ManualClock(), options=options)
        there = await open_sqlite(path, clock=ManualClock())
        woken = asyncio.Event()
        stop = here.subscribe(woken.set)
        await there.commit([starting()])
        await asyncio.wait_for(woken.wait(), 10)
        stop()
        await here.close()
        await there.close()

    asyncio.run(main())


def test_renewal_from_another_thread_while_the_loop_stands(tmp_path):
    """A lease is renewed although the event loop does nothing."""

    async def renew(bench):
        worker = await bench.worker()
        answers = []
        thread = threading.Thread(target=lambda: answers.append(bench.store.renew(worker)))
        thread.start()
        thread.join(10)
        return answers

    assert with_bench(tmp_path / "s.db", renew) == [True]


def test_long_read_does_not_hold_the_writer(tmp_path):
    """While a page is being read, commits go on."""

    async def both(bench):
        gate = threading.Event()
        reading = asyncio.ensure_future(bench.store._read(lambda database: gate.wait(10)))
        await bench.start()
        assert not reading.done()
        gate.set()
        assert await reading

    with_bench(tmp_path / "s.db", both)


def test_log_is_emptied(tmp_path):
    """The log of commits is moved into the file and emptied when there is time."""

    async def idle(bench):
        await bench.start()
        store = bench.store
        log = tmp_path / "s.db-wal"
        assert log.stat().st_size > 0

        def twice():
            for _ in range(2):
                store._checkpointer._looked = 0
                store._checkpointer.when_idle()

        await store._on(store._writing, twice)
        return log.stat().st_size

    assert with_bench(tmp_path / "s.db", idle) == 0


def test_long_log_is_shortened_by_commits(tmp_path, monkeypatch):
    """A commit that makes the log long lets the checkpointer move it."""
    monkeypatch.setattr("outlast.store.sqlite.checkpoint._PAGES", 20)

    async def grow(bench):
        for number in range(30):
            await bench.start(f"run-{number}", entries=(row(0, bytes(20_000)),))
        return (tmp_path / "s.db-wal").stat().st_size

    assert with_bench(tmp_path / "s.db", grow) < 30 * 20_000


def test_unfinished_registration_holds_no_lock(tmp_path):
    """An id under which another process lives is refused, and told."""
    path = tmp_path / "s.db"
    registration = WorkerRow(WorkerId("w1"), "host", 1, "b", ("fix",), timedelta(seconds=15))

    async def main():
        here = await open_sqlite(path, clock=ManualClock())
        there = await open_sqlite(path, clock=ManualClock())
        await here.register(registration)
        with pytest.raises(StoreUnavailableError, match="no lock could be taken"):
            await there.register(registration)
        await here.close()
        await there.close()

    asyncio.run(main())


def test_locks_of_workers_that_never_registered_are_swept(tmp_path):
    """A process that is killed between taking its lock and registering leaves a file; the next registration removes it."""
    path = tmp_path / "s.db"

    async def main():
        clock = ManualClock()
        mine, dead, living = [await open_sqlite(path, clock=clock) for _ in range(3)]
        dead._locks.hold(WorkerId("dead"))
        await dead.abandon()
        living._locks.hold(WorkerId("living"))
        await Bench(mine, clock).worker("w1")
        left = {one.name for one in (tmp_path / "s.db-workers").glob("*.lock")}
        assert left == {"w1.lock", "living.lock"}
        await living.abandon()
        await mine.abandon()

    asyncio.run(main())


def test_work_survives_the_store(tmp_path):
    """What was applied is there when the file is opened again."""
    path = tmp_path / "s.db"

    async def work(bench):
        head = await bench.owned()
        await bench.apply(following(head))
        await bench.apply(sending(head.run))
        return await bench.store.load(head.run), await bench.store.timeline()

    async def look(bench):
        return await bench.store.load(RunKey("default", "run")), await bench.store.timeline()

    assert with_bench(path, work) == with_bench(path, look)


def test_closing_is_no_death(tmp_path):
    """A store that is closed before its worker was retired is no proof of death: what it began may still act."""
    path = tmp_path / "s.db"

    async def own(bench):
        return await bench.owned()

    async def look(bench):
        second = await bench.worker("w2", lease=timedelta(hours=1))
        claim = await bench.claim(second)
        listed = {one.row.worker: one.live for one in await bench.store.workers()}
        bench.clock.advance(LEASE)
        (taken,) = (await bench.claim(second)).runs
        await bench.store.retire(WorkerId("w1"))
        return claim.runs, listed, taken.stopped_ago

    with_bench(path, own)
    gc.collect()
    assert with_bench(path, look) == ((), {"w1": True, "w2": True}, timedelta(0))


def test_abandoning_is_death(tmp_path):
    """For tests a store can be closed as if its process had died: its runs are free at once."""
    path = tmp_path / "s.db"

    async def main():
        clock = ManualClock()
        first = Bench(await open_sqlite(path, clock=clock), clock)
        head = await first.owned()
        await first.store.abandon()
        await first.store.abandon()
        second = Bench(await open_sqlite(path, clock=clock), clock)
        taken = await second.claim_one(await second.worker("w2"))
        assert (taken.run, taken.lapses) == (head.run, 1)
        await second.store.abandon()

    asyncio.run(main())


def test_late_retirement_leaves_nothing(tmp_path):
    """A worker that lapsed and was buried by another still frees its lock when it is retired at last."""
    path = tmp_path / "s.db"

    async def main():
        clock = ManualClock()
        mine, other = [Bench(await open_sqlite(path, clock=clock), clock) for _ in range(2)]
        before = descriptors()
        await mine.owned()
        clock.advance(LEASE)
        second = await other.worker("w2")
        await other.claim_one(second)
        await mine.store.retire(WorkerId("w1"))
        await other.store.retire(second)
        assert descriptors() == before
        assert list((tmp_path / "s.db-workers").glob("w*.lock")) == []
        await mine.store.close()
        await other.store.close()

    asyncio.run(main())


def test_lists_by_status_read_only_what_they_show(tmp_path):
    """The few runs of one status are found by an index that gives them in order."""

    async def plan(bench):
        store = bench.store
        sql = (
            "EXPLAIN QUERY PLAN SELECT note FROM run WHERE tenant = ? AND status = ?"
            " AND (created_at, run_id) < (?, ?) ORDER BY created_at DESC, run_id DESC LIMIT ?"
        )
        rows = await store._read(lambda database: database.rows(sql, ("t", "failed", 1, "a", 9)))
        return [row[-1] for row in rows]

    (step,) = with_bench(tmp_path / "s.db", plan)
    assert "run_status (tenant=? AND status=? AND" in step


def test_a_hundred_openings_under_load(tmp_path):
    """Opening and closing a hundred times under load leaves no thread, no warning and no unanswered call."""
    before = threading.active_count()

    async def once(number):
        store = await open_sqlite(tmp_path / "s.db", clock=ManualClock())
        calls = [
            asyncio.ensure_future(store.commit([starting(f"run-{number}-{call}")]))
            for call in range(5)
        ]
        calls.append(asyncio.ensure_future(store.claim(WorkerId("w"), WORKFLOWS, 1)))
        calls.append(asyncio.ensure_future(store.heads("default")))
        await asyncio.sleep(0)
        await store.close()
        return await asyncio.gather(*calls)

    async def main():
        for number in range(100):
            *commits, _, _ = await once(number)
            assert all(isinstance(verdict, Applied) for (verdict,) in commits)

    asyncio.run(main())
    assert threading.active_count() == before


def test_latest_published_reads_no_journal(tmp_path):
    """The last published value is found through an index of published entries alone, however long the journal is."""
    path = tmp_path / "s.db"
    opening(path)
    database = apsw.Connection(str(path))
    plan = " ".join(
        row[3]
        for row in database.execute(
            f"EXPLAIN QUERY PLAN {read_module._LATEST_PUBLISHED}", ("t", "r", 1, "published", "n")
        )
    )
    sql = database.execute("SELECT sql FROM sqlite_schema WHERE name = 'entry_published'").get
    database.close()
    assert "entry_published (tenant=? AND run_id=? AND generation=? AND name=?)" in plan
    assert "TEMP B-TREE" not in plan
    assert sql.endswith("WHERE kind = 'published'")


def test_restart_leaves_no_body_of_what_was_never_read(tmp_path):
    """What a terminated run was sent stays with it; once its id is used again nobody can read it, and nothing of it is kept."""
    path = tmp_path / "s.db"

    def bodies():
        database = apsw.Connection(str(path))
        found = [row[0] for row in database.execute("SELECT body FROM message ORDER BY number")]
        database.close()
        return found

    async def test(bench):
        head = await bench.owned()
        await bench.apply(sending(head.run))
        await bench.apply(Terminate(head.run, "alice", "enough"))
        before = bodies()
        await bench.start(generation=2)
        await bench.apply(sending(head.run, "m2"))
        return before, bodies()

    assert with_bench(path, test) == ([b'"hi"'], [b"", b'"hi"'])
