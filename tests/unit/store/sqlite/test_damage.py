"""A damaged row is its own run's trouble: nobody else's write is refused, nobody else's claim is stopped."""

import asyncio
import logging
from datetime import timedelta

import apsw
import pytest

from outlast.errors import StoreCorruptError, StoreUnavailableError
from outlast.store.change import (
    Applied,
    Decide,
    Message,
    MessageKind,
    Refused,
    RunKey,
    Status,
    WorkerId,
)
from outlast.store.sqlite import lease, transaction
from outlast.store.sqlite.store import open_sqlite
from outlast.testing.conformance import Bench, ManualClock
from outlast.testing.conformance.bench import LEASE, asking, following, parking, sending, starting


@pytest.fixture
def with_bench(tmp_path):
    """Run a scenario on a new file, with a way to damage it behind the store's back."""

    def run(test):
        async def main():
            clock = ManualClock()
            path = tmp_path / "s.db"
            store = await open_sqlite(path, clock=clock)

            def damage(statement):
                other = apsw.Connection(str(path))
                other.execute(statement)
                assert other.changes() == 1
                other.close()

            try:
                return await test(Bench(store, clock), damage)
            finally:
                await store.abandon()

        lease._say_skipped.cache_clear()
        return asyncio.run(main())

    return run


def deciding(run):
    """Return a decision on the request `a1`."""
    message = Message("d1", MessageKind.DECISION, "a1", "bob", b"{}")
    return Decide(run, "a1", "s", True, "bob", message)


@pytest.mark.parametrize("column", ["spent", "covers"])
def test_damaged_approval_refuses_its_own_change_alone(with_bench, column):
    """The change that meets it is refused as corrupt and writes nothing; those in the same commit are applied."""

    async def test(bench, damage):
        head = await bench.owned("victim")
        await bench.apply(following(head, approvals=(asking(bench.clock),)))
        innocent = await bench.head(await bench.start("innocent", worker=WorkerId("w1")))
        damage(f"UPDATE approval SET {column} = 'no json'")
        changes = [following(innocent), deciding(head.run), starting("other")]
        verdicts = await bench.store.commit(changes)
        assert [type(verdict) for verdict in verdicts] == [Applied, Refused, Applied]
        assert verdicts[1] == Refused("corrupt", "DecodeError")
        assert await bench.store.mail(head.run) == ()
        assert (await bench.head(innocent.run)).version == 1
        # The lock was let go, and the run itself goes on where the row is not needed.
        await bench.apply(following(await bench.head(head.run)))

    with_bench(test)


@pytest.mark.parametrize(
    "error", [KeyError("x"), ValueError("x"), AssertionError(), RecursionError()]
)
def test_any_error_of_one_change_is_its_own(with_bench, monkeypatch, error):
    """Whatever one change raises, its neighbours are applied and nothing of it is written."""
    apply = transaction._apply

    def failing(writing, change):
        verdict = apply(writing, change)
        if change.run.run_id == "bad":
            raise error
        return verdict

    async def test(bench, damage):
        monkeypatch.setattr(transaction, "_apply", failing)
        names = ("a", "bad", "c")
        verdicts = await bench.store.commit([starting(name) for name in names])
        assert [type(verdict) for verdict in verdicts] == [Applied, Refused, Applied]
        assert verdicts[1] == Refused("corrupt", type(error).__name__)
        found = await bench.store.heads("default")
        assert {head.run.run_id for head in found} == {"a", "c"}

    with_bench(test)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (apsw.FullError("x"), StoreUnavailableError),
        (apsw.IOError("x"), StoreUnavailableError),
        (apsw.BusyError("x"), StoreUnavailableError),
        (apsw.CorruptError("x"), StoreCorruptError),
        (apsw.NotADBError("x"), StoreCorruptError),
        (MemoryError(), MemoryError),
    ],
)
def test_error_of_the_file_is_nobodys_verdict(with_bench, monkeypatch, error, told):
    """What the disk or the file's pages raise goes up, and nothing of the commit is written."""
    apply = transaction._apply

    def failing(writing, change):
        if change.run.run_id == "b":
            raise error
        return apply(writing, change)

    async def test(bench, damage):
        with monkeypatch.context() as patched:
            patched.setattr(transaction, "_apply", failing)
            with pytest.raises(told):
                await bench.store.commit([starting("a"), starting("b")])
        assert await bench.store.heads("default") == []
        await bench.start("a")

    with_bench(test)


def test_damaged_worker_stops_no_claim(with_bench):
    """A worker's row whose names cannot be read neither stops others nor hides; it is buried when it lapses."""

    async def test(bench, damage):
        head = await bench.owned("run", "w1")
        second = await bench.worker("w2", lease=timedelta(hours=1))
        await bench.start("other")
        damage("UPDATE worker SET workflows = 'no json' WHERE worker = 'w1'")
        assert (await bench.claim_one(second)).run.run_id == "other"
        listed = {
            one.row.worker: (one.live, one.row.workflows) for one in await bench.store.workers()
        }
        assert listed == {"w1": (True, ()), "w2": (True, ("fix",))}
        await bench.apply(following(head))
        assert bench.store.renew(WorkerId("w1")) is True
        bench.clock.advance(LEASE)
        assert (await bench.claim_one(second)).run == head.run

    with_bench(test)


@pytest.mark.parametrize(
    "damaging",
    [
        "status = 'dancing'",
        "status = 'completed'",
        f"created_at = {1 << 62}",
        f"wake_at = {1 << 62}",
    ],
)
def test_damaged_run_is_skipped(with_bench, caplog, damaging):
    """A run whose row makes no sense is left as it is, said once; those behind it are claimed, also one by one."""

    async def test(bench, damage):
        worker = await bench.worker()
        for name in ("a", "b", "c"):
            await bench.start(name)
        damage(f"UPDATE run SET {damaging} WHERE run_id = 'a'")
        taken = [(await bench.claim(worker, 1)).runs for _ in range(3)]
        names = [[one.head.run.run_id for one in runs] for runs in taken]
        assert names == [["b"], ["c"], []]

    with caplog.at_level(logging.WARNING, "outlast.store"):
        with_bench(test)
    (record,) = caplog.records
    assert "run a is never claimed" in record.getMessage()


def test_absurd_alarm_does_not_stop_claims(with_bench):
    """A time beyond the calendar is no time to come."""

    async def test(bench, damage):
        head = await bench.owned()
        await bench.apply(parking(head, wake_at=bench.clock.now() + timedelta(hours=1)))
        damage(f"UPDATE run SET due = {1 << 62}")
        assert (await bench.claim(WorkerId("w1"))).next_due is None

    with_bench(test)


def test_unknown_message_kind_concerns_its_run_alone(with_bench):
    """A message that makes no sense does not keep its run, or another, from being claimed."""

    async def test(bench, damage):
        worker = await bench.worker()
        run = await bench.start("a")
        await bench.start("b")
        await bench.apply(sending(run))
        damage("UPDATE message SET kind = 'poem'")
        assert len((await bench.claim(worker)).runs) == 2

    with_bench(test)


def test_unknown_status_is_told_to_readers(with_bench):
    """Who looks at such a run learns what is wrong with which run."""

    async def test(bench, damage):
        await bench.start("a")
        damage("UPDATE run SET status = 'dancing'")
        with pytest.raises(StoreCorruptError, match="dancing") as caught:
            await bench.store.head(RunKey("default", "a"))
        assert caught.value.run == "a"

    with_bench(test)


def test_damaged_list_of_builds_refuses_its_own_change_alone(with_bench):
    """What is no list of builds keeps nobody from claiming others."""

    async def test(bench, damage):
        head = await bench.owned("a")
        await bench.apply(parking(head, status=Status.BLOCKED, unfit_build="b1"))
        damage("UPDATE run SET unfit_builds = 'nonsense'")
        await bench.start("b")
        taken = (await bench.claim(WorkerId("w1"))).runs
        assert {one.head.run.run_id for one in taken} == {"a", "b"}

    with_bench(test)
