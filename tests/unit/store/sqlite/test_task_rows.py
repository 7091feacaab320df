"""Tasks in a file: a damaged row is its own run's trouble, and workers without queues never read the table."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import apsw
import pytest

from outlast.errors import StoreCorruptError
from outlast.store.change import Applied, Refused, RunKey, WorkerId
from outlast.store.sqlite import damage
from outlast.store.sqlite.store import open_sqlite
from outlast.testing.conformance import Bench, ManualClock
from outlast.testing.conformance.bench import LEASE, following
from outlast.testing.conformance.task import QUEUES, STEPS, finishing, offered, take, take_one

NO_TEXT = "CAST(x'ff' AS TEXT)"
FARTHEST = (1 << 63) - 1


@pytest.fixture
def with_bench(tmp_path):
    """Run a scenario on a new file, with a way to write into it behind the store's back."""

    def run(test):
        async def main():
            path = tmp_path / "s.db"
            clock = ManualClock()
            store = await open_sqlite(path, clock=clock)

            def edit(statement):
                other = apsw.Connection(str(path))
                other.execute(statement)
                other.close()

            try:
                return await test(Bench(store, clock), edit)
            finally:
                await store.abandon()

        damage._say_once.cache_clear()
        return asyncio.run(main())

    return run


@pytest.mark.parametrize("limit", [1, 10])
@pytest.mark.parametrize(
    "damaging",
    [
        f"operation = {NO_TEXT}",
        f"run_id = {NO_TEXT}",
        f"since = {FARTHEST}",
        f"since = {-FARTHEST - 1}",
        f"taken = {FARTHEST}",
    ],
)
def test_a_task_that_cannot_be_read_is_skipped(with_bench, caplog, damaging, limit):
    """It is never taken and said once; those behind it are."""

    async def test(bench, edit):
        for name in ("a", "b", "c"):
            await offered(bench, name)
            bench.clock.advance(timedelta(seconds=1))
        edit(f"UPDATE task SET {damaging} WHERE run_id = 'a'")
        second = await bench.worker("w2")
        known, names = frozenset(), []
        for _ in range(4):
            claim = await take(bench, second, limit, known=known)
            known |= {task.row.key for task in claim.tasks}
            names += [task.row.key.run.run_id for task in claim.tasks]
        assert names == ["b", "c"]

    with caplog.at_level(logging.WARNING, "outlast.store"):
        with_bench(test)
    (said,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert "is never taken: its row cannot be read" in said


def test_a_due_time_beyond_the_calendar_is_none(with_bench):
    """Such a task is not offered, and no look is told to wait for it."""

    async def test(bench, edit):
        await offered(bench)
        edit(f"UPDATE task SET due = {FARTHEST}")
        claim = await take(bench, await bench.worker("w2"))
        assert (claim.tasks, claim.next_due) == ((), None)

    with_bench(test)


def test_a_damaged_task_refuses_its_own_change_alone(with_bench):
    """Whoever finishes it, or loads its run, is told; others in the same commit are written."""

    async def test(bench, edit):
        head = await offered(bench, "victim")
        row = await take_one(bench, await bench.worker("w2"))
        innocent = await bench.head(await bench.start("innocent", worker=WorkerId("w1")))
        edit(f"UPDATE task SET since = {FARTHEST}")
        verdicts = await bench.store.commit([finishing(row), following(innocent)])
        assert [type(one) for one in verdicts] == [Refused, Applied]
        for ask in (bench.store.load, bench.store.tasks):
            with pytest.raises(StoreCorruptError) as caught:
                await ask(head.run)
            assert caught.value.run == "victim"

    with_bench(test)


def test_a_damaged_task_keeps_nobody_from_being_buried(with_bench):
    """What a dead worker held comes back, whatever stands in the row of one of its tasks."""

    async def test(bench, edit):
        for name in ("a", "b"):
            await offered(bench, name)
        assert len((await take(bench, await bench.worker("w2"))).tasks) == 2
        edit(f"UPDATE task SET lapses = {FARTHEST}, operation = {NO_TEXT} WHERE run_id = 'a'")
        bench.clock.advance(LEASE)
        again = await take_one(bench, await bench.worker("w3"))
        assert again.key.run == RunKey("default", "b")

    with_bench(test)


def test_workers_without_queues_never_read_tasks(with_bench):
    """A look for runs costs what it cost before there were tasks, however many of those wait."""

    async def test(bench, edit):
        for number in range(5):
            await offered(bench, f"run-{number}")
        await bench.start("next")
        seen: list[str] = []
        connection = bench.store._writer._connection
        connection.exec_trace = lambda _cursor, sql, _values: bool(seen.append(sql)) or True
        assert len((await bench.claim(WorkerId("w1"))).runs) == 1
        connection.exec_trace = None
        assert seen
        assert not any("task" in sql for sql in seen)

    with_bench(test)


def test_a_look_reads_only_what_it_may_take(with_bench):
    """Each queue and step is looked up by an index: a thousand tasks of others cost nothing."""

    async def test(bench, edit):
        await offered(bench)
        edit(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"
            " INSERT INTO task (tenant, run_id, operation, generation, attempt, queue, name, worker, due, since, set_at, arguments)"
            " SELECT 'default', 'other', 'r:' || i, 1, 1, iif(i % 2, 'gpu', 'cpu'),"
            " iif(i % 2, 'crop', 'render'), NULL, 0, 0, 0, x'' FROM n"
        )
        second = await bench.worker("w2")
        rows = 0

        def count(_cursor, _row):
            nonlocal rows
            rows += 1
            return _row

        connection = bench.store._writer._connection
        connection.row_trace = count
        claim = await bench.store.claim_tasks(second, QUEUES, STEPS, limit=10)
        connection.row_trace = None
        assert len(claim.tasks) == 1
        assert rows < 30

    with_bench(test)
