"""What a look costs: as much as it finds, however much is stored or known beside it. Counted in statements and in steps of SQLite."""

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from outlast.store.change import (
    ApprovalWithdraw,
    HeadUpdate,
    RunKey,
    Status,
    TaskPut,
    WorkerId,
)
from outlast.store.sqlite.store import open_sqlite
from outlast.testing.conformance import Bench, ManualClock
from outlast.testing.conformance.bench import (
    WORKFLOWS,
    asking,
    ending,
    following,
    parking,
    starting,
)
from outlast.testing.conformance.request import beginning, ending_of

HOUR = timedelta(hours=1)


@asynccontextmanager
async def opened(path):
    """Open a store with one worker."""
    clock = ManualClock()
    store = await open_sqlite(path, clock=clock)
    try:
        bench = Bench(store, clock)
        await bench.worker(lease=HOUR)
        yield bench
    finally:
        await store.abandon()


async def cost_of(bench, look, *, reads=False):
    """Return how many statements, and about how many hundreds of steps, `look()` takes, once its statements are prepared."""
    connection = (bench.store._open_readers[0] if reads else bench.store._writer)._connection
    await look()
    statements, steps = [], []

    def traced(_cursor, sql, _bindings):
        statements.append(sql)
        return True

    connection.exec_trace = traced
    connection.set_progress_handler(lambda: bool(steps.append(1)), 100)
    try:
        await look()
    finally:
        connection.exec_trace = None
        connection.set_progress_handler(None)
    return len(statements), len(steps)


async def park(bench, count, **fields):
    """Start so many runs, and give them back with `fields`."""
    worker = WorkerId("w1")
    starts = [starting(f"r{number}", worker=worker) for number in range(count)]
    await bench.store.commit(starts)
    heads = [await bench.head(start.run) for start in starts]
    await bench.store.commit([parking(head, **fields) for head in heads])


@pytest.mark.parametrize(
    "fields",
    [
        {"status": Status.BLOCKED, "unfit_build": "b1"},
        {"status": Status.WAITING},
        {"status": Status.PAUSED},
        {"status": Status.WAITING, "wake_at": ManualClock().now() + HOUR},
    ],
    ids=["unfit", "waiting", "paused", "asleep"],
)
def test_look_does_not_read_what_is_parked(tmp_path, fields):
    """Runs that this worker may not take cost it nothing: neither those that wait, nor those that wait for another build."""

    async def costs(count):
        async with opened(tmp_path / f"{count}.db") as bench:
            await park(bench, count, **fields)
            bench.clock.advance(timedelta(seconds=1))
            claim = await bench.claim(WorkerId("w1"))
            assert claim.runs == ()
            return await cost_of(bench, lambda: bench.claim(WorkerId("w1")))

    few, many = asyncio.run(costs(5)), asyncio.run(costs(400))
    assert many[0] == few[0]
    assert many[1] <= few[1] + 2


def test_look_after_the_clock_was_set_back_reads_what_it_takes(tmp_path):
    """Runs whose times mean nothing are taken a few at a look; the others are not sorted for it."""

    async def costs(count):
        async with opened(tmp_path / f"{count}.db") as bench:
            await park(bench, count, status=Status.WAITING, wake_at=bench.clock.now() + HOUR)
            bench.clock.set_wall(bench.clock.now() - timedelta(seconds=5))

            async def look():
                assert len((await bench.claim(WorkerId("w1"), 2)).runs) == 2

            return await cost_of(bench, look)

    few, many = asyncio.run(costs(8)), asyncio.run(costs(400))
    assert many[0] == few[0]
    assert many[1] <= few[1] + 2


def test_look_asks_no_more_for_many_names(tmp_path):
    """A worker of three hundred workflows, or of as many steps in four queues, asks as often as one of one; a name costs a step or two in an index."""

    async def costs(count):
        async with opened(tmp_path / f"{count}.db") as bench:
            names = frozenset(f"n{number}" for number in range(count))
            queues = frozenset(f"q{number}" for number in range(min(count, 4)))
            worker = WorkerId("w1")
            return (
                await cost_of(bench, lambda: bench.store.claim(worker, names, 5)),
                await cost_of(
                    bench, lambda: bench.store.claim_tasks(worker, queues, names, limit=5)
                ),
            )

    (run, task), (many_run, many_task) = asyncio.run(costs(1)), asyncio.run(costs(300))
    assert (many_run[0], many_task[0]) == (run[0], task[0])
    assert many_run[1] <= run[1] + 300
    assert many_task[1] <= task[1] + 60


def test_look_at_a_long_queue_reads_what_it_takes(tmp_path):
    """Of many runs, or tasks, that could be taken, hardly more are read than are taken."""

    async def costs(count):
        async with opened(tmp_path / f"{count}.db") as bench:
            worker, queues, steps = WorkerId("w1"), frozenset({"q"}), frozenset({"s"})
            head = await bench.head(await bench.start("tasks", worker=worker))
            puts = tuple(TaskPut(f"r:{number}", 1, "q", "s", b"{}") for number in range(count))
            await bench.apply(following(head, tasks=puts, head=HeadUpdate(Status.WAITING)))
            await bench.store.commit([starting(f"r{number}") for number in range(count)])

            async def runs():
                claim = await bench.store.claim(worker, WORKFLOWS, 3)
                assert len(claim.runs) == 3

            taken = set()

            async def tasks():
                claim = await bench.store.claim_tasks(
                    worker, queues, steps, limit=3, known=frozenset(taken)
                )
                assert len(claim.tasks) == 3
                taken.update(one.row.key for one in claim.tasks)

            return await cost_of(bench, runs), await cost_of(bench, tasks)

    for few, many in zip(asyncio.run(costs(10)), asyncio.run(costs(400)), strict=True):
        assert many[0] == few[0]
        assert many[1] <= few[1] + 3


def test_request_costs_the_same_among_many(tmp_path):
    """A key is one look, and a beginning and an end are the same few statements, however many records there are."""

    async def main():
        async with opened(tmp_path / "s.db") as bench:
            numbers = iter(range(10_000))

            async def begin_and_end():
                begun = beginning(f"k{next(numbers)}")
                await bench.apply(begun)
                await bench.apply(ending_of(begun))

            few = await cost_of(bench, begin_and_end)
            changes = [beginning(f"many{number}") for number in range(2000)]
            await bench.store.commit(changes)
            await bench.store.commit([ending_of(one) for one in changes])
            return few, await cost_of(bench, begin_and_end)

    (few, steps), (many, more_steps) = asyncio.run(main())
    assert few == many <= 16
    assert more_steps <= steps + 1


def test_waiting_requests_cost_what_is_shown(tmp_path):
    """A page of a tenant's requests that wait, and those of one run, are read past none that are over and none of other runs."""

    def asked(head, numbers):
        puts = tuple(asking(ManualClock(), f"a{number:05}") for number in numbers)
        return following(head, entries=0, approvals=puts)

    async def main():
        async with opened(tmp_path / "s.db") as bench:
            for name in ("mine", "many"):
                await bench.start(name, worker=WorkerId("w1"))
                await bench.apply(asked(await bench.head(RunKey("default", name)), range(2)))
            mine, many = RunKey("default", "mine"), RunKey("default", "many")

            async def look():
                (first, *_) = await bench.store.approvals("default", limit=1)
                after = (first.requested_at, "mine", "a00000")
                assert len(await bench.store.approvals("default", limit=1, after=after)) == 1
                assert len(await bench.store.approvals("default", run=mine, limit=2)) == 2
                assert len(await bench.store.approvals("default", pending=False, limit=2)) == 2

            few = await cost_of(bench, look, reads=True)
            for run in (many, mine):
                head = await bench.head(run)
                await bench.apply(asked(head, range(100, 800)))
                head = await bench.head(run)
                over = tuple(ApprovalWithdraw(f"a{number:05}") for number in range(100, 800))
                await bench.apply(following(head, entries=0, approvals=over))
            await bench.apply(asked(await bench.head(many), range(5000, 6000)))
            return few, await cost_of(bench, look, reads=True)

    (few, steps), (many, more_steps) = asyncio.run(main())
    assert few == many
    assert more_steps <= steps + 1


def test_figures_do_not_read_what_has_ended(tmp_path):
    """Four hundred runs that have ended cost the figures nothing, in any tenant; they find what waits as before."""

    async def costs(count):
        async with opened(tmp_path / f"{count}.db") as bench:
            worker = WorkerId("w1")
            starts = [starting(f"r{number}", worker=worker) for number in range(count)]
            await bench.store.commit(starts)
            heads = [await bench.head(start.run) for start in starts]
            asked = [following(head, approvals=(asking(bench.clock),)) for head in heads]
            await bench.store.commit(asked)
            await bench.store.commit([ending(await bench.head(start.run)) for start in starts])
            await bench.start("open")
            found = await bench.store.figures()
            assert found.runs["ready"] == found.waiting.count == 1
            return (
                await cost_of(bench, bench.store.figures, reads=True),
                await cost_of(bench, lambda: bench.store.figures("default"), reads=True),
            )

    few, many = asyncio.run(costs(5)), asyncio.run(costs(400))
    for before, after in zip(few, many, strict=True):
        assert after[0] == before[0]
        assert after[1] <= before[1] + 2
