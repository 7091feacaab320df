"""What a store promises of lines of history: what begins with a new one, and what a paused worker may take."""

from __future__ import annotations

from datetime import timedelta

from outlast.store.change import (
    Fenced,
    Refused,
    Release,
    Restored,
    RunKey,
    Status,
    WorkerId,
    WorkerRow,
)
from outlast.store.protocol import Claim
from outlast.store.restoration import EVERYBODY, RESTORATION, Releases
from outlast.testing.conformance.bench import (
    LEASE,
    WORKFLOW,
    WORKFLOWS,
    Bench,
    ending,
    following,
    parking,
    scenario,
    sending,
)

SECOND = timedelta(seconds=1)


async def claim_released(bench: Bench, worker: WorkerId, limit: int = 10) -> Claim:
    """Claim as a paused worker does."""
    return await bench.store.claim(worker, WORKFLOWS, limit, released=True)


def ids(claim: Claim) -> list[str]:
    """Return the ids of the runs that were taken, in order."""
    return [taken.head.run.run_id for taken in claim.runs]


class TimelineConformance:
    """Releases, and new lines of history."""

    @scenario
    async def test_paused_worker_takes_what_is_released(self, bench: Bench) -> None:
        """Of runs that are due a paused worker takes those that were released, oldest first, and no other."""
        worker = await bench.worker(lease=timedelta(hours=1))
        runs: dict[str, RunKey] = {}
        for name in ("c", "a", "b", "d"):
            runs[name] = await bench.start(name)
            bench.clock.advance(SECOND)
        claim = await claim_released(bench, worker)
        assert (claim.runs, claim.next_due) == ((), None)
        for name in ("b", "c", "d"):
            await bench.apply(Release(runs[name]))
        assert (await bench.head(runs["b"])).released
        assert ids(await claim_released(bench, worker, 2)) == ["c", "b"]
        assert ids(await claim_released(bench, worker)) == ["d"]
        assert ids(await bench.claim(worker)) == ["a"]

    @scenario
    async def test_released_run_stays_so_among_paused_workers(self, bench: Bench) -> None:
        """A paused worker takes a released run again when it wakes, is sent something or lost; one that is not paused ends that."""
        worker = await bench.worker(lease=timedelta(hours=1))
        run = await bench.start()
        await bench.apply(Release(run))
        (taken,) = (await claim_released(bench, worker)).runs
        assert taken.head == await bench.head(run)
        assert taken.head.released
        await bench.apply(parking(taken.head, wake_at=bench.clock.now() + SECOND))
        claim = await claim_released(bench, worker)
        assert (claim.runs, claim.next_due) == ((), bench.clock.now() + SECOND)
        bench.clock.advance(SECOND)
        (taken,) = (await claim_released(bench, worker)).runs
        await bench.apply(parking(taken.head))
        await bench.apply(sending(run))
        (taken,) = (await bench.claim(worker)).runs
        assert taken.head == await bench.head(run)
        assert not taken.head.released
        await bench.apply(parking(taken.head, ignore_mail=True))
        await bench.apply(sending(run, "m2"))
        assert ids(await claim_released(bench, worker)) == []
        assert ids(await bench.claim(worker)) == ["run"]

    @scenario
    async def test_clock_that_was_ahead_hides_nothing_released(self, bench: Bench) -> None:
        """What was given back while the wall clock was ahead is taken when it is right again, where it is released."""
        right = bench.clock.now()
        worker = await bench.worker(lease=timedelta(hours=1))
        bench.clock.set_wall(right + timedelta(days=9))
        runs = [await bench.start(name) for name in ("a", "b")]
        await bench.apply(Release(runs[1]))
        bench.clock.set_wall(right)
        assert ids(await claim_released(bench, worker)) == ["b"]

    @scenario
    async def test_open_runs_are_released(self, bench: Bench) -> None:
        """What does not exist, or has ended, is not released; releasing twice is releasing once."""
        head = await bench.owned()
        assert await bench.one(Release(RunKey("default", "no"))) == Refused("not_found")
        await bench.apply(Release(head.run))
        await bench.apply(Release(head.run))
        assert (await bench.head(head.run)).version == head.version
        await bench.apply(ending(head))
        assert await bench.one(Release(head.run)) == Refused("closed")

    @scenario
    async def test_new_timeline_holds_what_is_open(self, bench: Bench) -> None:
        """A new line of history marks every open run, releases none, forgets the workers, and says so in a control row."""
        before = await bench.store.timeline()
        head = await bench.owned("held")
        done = await bench.owned("done")
        await bench.apply(ending(done))
        waiting = await bench.start("waiting")
        await bench.apply(Release(waiting))
        bench.clock.advance(SECOND)
        last = await bench.apply(following(head))
        bench.clock.advance(SECOND)
        timeline = await bench.store.begin_timeline("a test")
        assert timeline == await bench.store.timeline() != before
        now = bench.clock.now()
        for run in (head.run, waiting):
            found = await bench.head(run)
            assert (found.restored, found.released) == (Restored(now, last.at), False)
            assert (found.owner, found.status) == (None, Status.READY)
        assert (await bench.head(done.run)).restored is None
        row = Releases.of(await bench.store.control(EVERYBODY, RESTORATION))
        assert row.held
        assert not row.trusted
        assert row.restored is not None
        told = row.restored
        assert (told.timeline, told.former, told.at, told.until) == (timeline, before, now, last.at)
        assert await bench.store.workers() == []
        assert isinstance(await bench.one(following(head)), Fenced)
        assert not bench.store.renew(WorkerId("w1"))
        worker = await bench.worker("w2")
        assert ids(await claim_released(bench, worker)) == []
        assert sorted(ids(await bench.claim(worker))) == ["held", "waiting"]

    @scenario
    async def test_second_timeline_remembers_the_first(self, bench: Bench) -> None:
        """What an earlier restore may have made forgotten stays so: nothing is known since the earlier of the two moments."""
        run = await bench.start()
        at = (await bench.head(run)).changed_at
        bench.clock.advance(SECOND)
        first = await bench.store.begin_timeline("once")
        other = await bench.start("other")
        bench.clock.advance(SECOND)
        assert await bench.store.begin_timeline("twice") != first
        assert (await bench.head(run)).restored == Restored(bench.clock.now(), at)
        since = (await bench.head(other)).changed_at
        assert (await bench.head(other)).restored == Restored(bench.clock.now(), since)

    @scenario
    async def test_mark_lasts_until_somebody_vouches(self, bench: Bench) -> None:
        """Released with care a run keeps its mark, also in its next generation by roll-over; trusted, or started anew, it has none."""
        marked = Restored(bench.clock.now(), bench.clock.now() - SECOND)
        run = await bench.start(restored=marked, released=True)
        assert (await bench.head(run)).restored == marked
        worker = await bench.worker()
        (taken,) = (await claim_released(bench, worker)).runs
        await bench.apply(Release(run))
        assert (await bench.head(run)).restored == marked
        await bench.apply(Release(run, trust=True))
        assert (await bench.head(run)).restored is None
        await bench.apply(ending(taken.head))
        await bench.start(generation=2)
        assert not (await bench.head(run)).released
        await bench.apply(ending((await bench.claim(worker)).runs[0].head))
        await bench.start(generation=3, restored=marked)
        await bench.apply(ending((await bench.claim(worker)).runs[0].head))
        await bench.start(generation=4)
        assert (await bench.head(run)).restored is None

    @scenario
    async def test_paused_worker_is_listed_as_such(self, bench: Bench) -> None:
        """Whether a worker is paused is seen by others; registered again it goes on as the same."""
        worker = WorkerId("w1")
        row = WorkerRow(worker, "host", 7, "b1", (WORKFLOW,), LEASE, paused=True)
        await bench.store.register(row)
        run = await bench.start(worker=worker)
        assert [one.row for one in await bench.store.workers()] == [row]
        await bench.store.register(WorkerRow(worker, "host", 7, "b1", (WORKFLOW,), LEASE))
        assert [one.row.paused for one in await bench.store.workers()] == [False]
        assert (await bench.head(run)).owner == worker
