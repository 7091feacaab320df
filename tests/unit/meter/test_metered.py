"""A metered store counts what was written, once, and reads nothing of it."""

import asyncio
import random
from datetime import timedelta

import pytest
from msgspec.structs import replace

from outlast.errors import StoreUnavailableError
from outlast.meter import instrument as of
from outlast.meter.store import metered
from outlast.meter.tally import Tally
from outlast.store.change import (
    ClearOutbox,
    OutboxItem,
    OutboxKind,
    RunKey,
    Status,
    Terminate,
    WorkerId,
    digest_of,
)
from outlast.store.memory import MemoryStore
from outlast.testing import Faults, FaultyStore
from outlast.testing.conformance import Bench, ManualClock
from outlast.testing.conformance.bench import ending, following, parking, row
from outlast.testing.conformance.task import finishing, offered, take_one


def bench_of(**faults):
    """Return a bench over a metered store, its tally, and the faulty store below."""
    clock, tally = ManualClock(), Tally()
    inner = FaultyStore(MemoryStore(clock), random.Random(1), faults=Faults(**faults))
    return Bench(metered(inner, tally, clock.monotonic), clock), tally, inner


def test_what_is_written_is_counted():
    """Starts, entries by what they are, ends, what became blocked, and each verdict."""

    async def main():
        bench, tally, _ = bench_of()
        head = await bench.owned()
        kinds = ("step_completed", "step_failed", "effect_in_doubt", "approval_requested", "taken")
        rows = tuple(row(head.next_seq + at, kind=kind) for at, kind in enumerate(kinds))
        change = replace(following(head, entries=0), entries=rows)
        await bench.apply(replace(change, digest=digest_of(change)))
        head = await bench.head(head.run)
        await bench.one(following(head, epoch=9))
        await bench.apply(parking(head, status=Status.BLOCKED, reason="poison"))
        other = await bench.start("b", worker=WorkerId("w1"))
        await bench.apply(ending(await bench.head(other), Status.FAILED))
        third = await bench.start("c")
        await bench.apply(Terminate(third, "admin", "no more"))
        assert tally.report().counts == {
            "outlast.store.changes": {"applied": 7, "fenced": 1},
            "outlast.run.started": 3,
            "outlast.step.outcomes": {"completed": 2, "failed": 1},
            "outlast.effect.outcomes": {"in_doubt": 1},
            "outlast.approval.outcomes": {"requested": 1},
            "outlast.run.blocks": {"poison": 1},
            "outlast.run.ended": {"failed": 1, "terminated": 1},
        }
        size = tally.report().measures["outlast.store.commit.size"]
        assert (size.count, size.mean) == (8, 1.0)

    asyncio.run(main())


def test_what_is_taken_is_counted():
    """Looks and runs, steps of queues by queue and their ends, words from run to run, renewals."""

    async def main():
        bench, tally, _ = bench_of()
        head = await offered(bench)
        worker = WorkerId("w1")
        await bench.start("ready")
        assert len((await bench.claim(worker)).runs) == 1
        assert (await bench.claim(worker)).runs == ()
        task = await take_one(bench, worker)
        await bench.apply(finishing(task))
        word = OutboxItem(RunKey("default", "x"), OutboxKind.SIGNAL, "m1", "go", "run")
        await bench.apply(following(await bench.head(head.run), outbox=(word,), consumed=()))
        await bench.apply(ClearOutbox(head.run, (1,), (), head.generation))
        assert bench.store.renew(worker)
        assert not bench.store.renew(WorkerId("nobody"))
        assert tally.count(of.CLAIMS) == 2
        assert tally.count(of.RUNS_CLAIMED) == 1
        assert tally.count(of.TASKS_TAKEN, "gpu") == 1
        assert tally.count(of.TASKS_FINISHED) == 1
        assert tally.count(of.RELAYED) == 1
        assert tally.count(of.RENEWALS) == 1

    asyncio.run(main())


def test_what_may_not_be_written_is_not_counted_as_written():
    """A store that is away, and a commit whose answer is lost, are told as such; sent again, the change is counted once."""

    async def main():
        bench, tally, inner = bench_of()
        head = await bench.owned()
        change = following(head)
        inner.faults = Faults(lost_answer=1)
        assert type(await bench.one(change)).__name__ == "Unknown"
        inner.faults = Faults(down=True)
        with pytest.raises(StoreUnavailableError):
            await bench.one(change)
        inner.faults = Faults()
        assert tally.count(of.STEPS, "completed") == 0
        await bench.apply(change)
        assert tally.count(of.STEPS, "completed") == 1
        assert tally.count(of.COMMITS_FAILED) == 1
        assert tally.count(of.CHANGES, "unknown") == 1

    asyncio.run(main())


def test_commits_are_timed():
    """From the sending to the answer, by the clock that was given."""

    async def main():
        bench, tally, inner = bench_of()
        inner.at_commit = lambda moment, _: (
            moment == "after" and bench.clock.advance(timedelta(seconds=2))
        )
        await bench.start("a")
        assert tally.report().measures["outlast.store.commit.duration"].largest == 2.0

    asyncio.run(main())
