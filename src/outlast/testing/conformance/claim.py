"""What a store promises of claims: who may take which run when, in which order, and what it is told of the former owner."""

from __future__ import annotations

from datetime import timedelta

from outlast.store.change import RunKey, Status, Terminate, WorkerId
from outlast.store.protocol import SUSPECT_LAPSES
from outlast.testing.conformance.bench import (
    LEASE,
    WORKFLOWS,
    Bench,
    ending,
    following,
    parking,
    scenario,
    sending,
)

SECOND = timedelta(seconds=1)


class ClaimConformance:
    """Leases and claims."""

    @scenario
    async def test_ready_run_is_taken_once(self, bench: Bench) -> None:
        """A ready run goes to one worker, running, at the next epoch; nobody owned it before."""
        first, second = await bench.worker("w1"), await bench.worker("w2")
        run = await bench.start()
        claim = await bench.claim(first)
        (taken,) = claim.runs
        assert (taken.head.run, taken.head.owner, taken.head.epoch) == (run, first, 1)
        assert (taken.head.status, taken.stopped_ago) == (Status.RUNNING, None)
        assert claim.now == bench.clock.now()
        assert taken.head == await bench.head(run)
        assert (await bench.claim(second)).runs == ()
        assert (await bench.claim(first)).runs == ()

    @scenario
    async def test_only_registered_workflows(self, bench: Bench) -> None:
        """A run of another workflow is left alone."""
        worker = await bench.worker()
        await bench.start("other", workflow="other")
        assert (await bench.claim(worker)).runs == ()
        claim = await bench.store.claim(worker, WORKFLOWS | {"other"}, 10)
        assert [taken.head.workflow for taken in claim.runs] == ["other"]
        assert (await bench.store.claim(worker, frozenset(), 10)).runs == ()

    @scenario
    async def test_oldest_first_and_limit(self, bench: Bench) -> None:
        """Runs are taken in the order in which they could have gone on, up to the limit."""
        worker = await bench.worker(lease=timedelta(hours=1))
        for name in ("c", "a", "b"):
            await bench.start(name)
            bench.clock.advance(SECOND)
        assert (await bench.claim(worker, 0)).runs == ()
        taken = (await bench.claim(worker, 2)).runs
        assert [claimed.head.run.run_id for claimed in taken] == ["c", "a"]
        assert [claimed.head.run.run_id for claimed in (await bench.claim(worker, 2)).runs] == ["b"]

    @scenario
    async def test_parked_run_wakes(self, bench: Bench) -> None:
        """A parked run is taken at its time, not before; the claim says when the next one comes due."""
        head = await bench.owned()
        worker = WorkerId("w1")
        wake_at = bench.clock.now() + 5 * SECOND
        await bench.apply(parking(head, wake_at=wake_at))
        parked = await bench.head(head.run)
        assert (parked.status, parked.owner, parked.wake_at) == (Status.WAITING, None, wake_at)
        claim = await bench.claim(worker)
        assert (claim.runs, claim.next_due) == ((), wake_at)
        bench.clock.advance(5 * SECOND)
        claim = await bench.claim(worker)
        assert [taken.head.run for taken in claim.runs] == [head.run]
        assert claim.runs[0].stopped_ago == 5 * SECOND
        assert (claim.runs[0].head.wake_at, claim.next_due) == (None, None)

    @scenario
    async def test_clock_that_was_ahead_hides_nothing(self, bench: Bench) -> None:
        """What was started, parked or sent while the wall clock was ahead is taken when it is right again; parked anew, it waits."""
        right = bench.clock.now()
        bench.clock.set_wall(right + timedelta(days=365))
        head = await bench.owned("parked")
        waiting = await bench.start("sent", worker=WorkerId("w1"))
        await bench.start("started")
        await bench.apply(parking(head, wake_at=bench.clock.now() + SECOND))
        await bench.apply(parking(await bench.head(waiting)))
        await bench.apply(sending(waiting))
        bench.clock.set_wall(right)
        claim = await bench.claim(WorkerId("w1"))
        taken = {one.head.run.run_id: one.head for one in claim.runs}
        assert set(taken) == {"parked", "sent", "started"}
        assert claim.next_due is None
        await bench.apply(parking(taken["parked"], wake_at=right + SECOND))
        claim = await bench.claim(WorkerId("w1"))
        assert (claim.runs, claim.next_due) == ((), right + SECOND)
        bench.clock.advance(SECOND)
        assert (await bench.claim_one(WorkerId("w1"))).run == head.run

    @scenario
    async def test_what_a_clock_that_was_ahead_has_set_is_taken_last(self, bench: Bench) -> None:
        """It has no place among the times of others: it comes behind them, in the order in which it was set."""
        worker, right = await bench.worker(), bench.clock.now()
        for name, days, wakes in (("b", 2, 1), ("a", 3, 0), ("c", 1, 9)):
            bench.clock.set_wall(right + timedelta(days=days))
            head = await bench.head(await bench.start(name, worker=worker))
            await bench.apply(parking(head, wake_at=bench.clock.now() + timedelta(days=wakes)))
        bench.clock.set_wall(right)
        await bench.start("z")
        taken = [(await bench.claim(worker, 1)).runs for _ in range(5)]
        names = [one.head.run.run_id for runs in taken for one in runs]
        assert names == ["z", "c", "b", "a"]

    @scenario
    async def test_waiting_without_alarm_is_not_taken(self, bench: Bench) -> None:
        """A run that waits for a message alone is left until one comes."""
        head = await bench.owned()
        await bench.apply(parking(head, status=Status.BLOCKED, reason="in doubt"))
        assert (await bench.claim(WorkerId("w1"))).runs == ()
        await bench.apply(sending(head.run))
        taken = await bench.claim_one(WorkerId("w1"))
        assert (taken.status, taken.reason, taken.mail) == (Status.RUNNING, "", True)

    @scenario
    async def test_given_back_ready(self, bench: Bench) -> None:
        """A run given back as ready is offered at once."""
        head = await bench.owned()
        await bench.apply(parking(head, status=Status.READY))
        assert (await bench.claim_one(WorkerId("w1"))).epoch == head.epoch + 1

    @scenario
    async def test_lapsed_owner_is_replaced(self, bench: Bench) -> None:
        """A lapsed owner's run is taken, stopped since the lease's end however late the claim is, one lapse counted."""
        head = await bench.owned()
        bench.clock.advance(LEASE - SECOND)
        second = await bench.worker("w2", lease=timedelta(hours=9))
        assert (await bench.claim(second)).runs == ()
        bench.clock.advance(4 * SECOND)
        third = await bench.worker("w3")
        assert (await bench.store.claim(third, frozenset({"other"}), 9)).runs == ()
        bench.clock.advance(7 * SECOND)
        (taken,) = (await bench.claim(second)).runs
        assert (taken.head.run, taken.head.owner, taken.head.epoch) == (
            head.run,
            second,
            head.epoch + 1,
        )
        assert (taken.head.lapses, taken.stopped_ago) == (1, 10 * SECOND)

    @scenario
    async def test_lapsed_worker_takes_nothing(self, bench: Bench) -> None:
        """A worker whose lease is over, or whom nobody knows, takes nothing and cannot renew."""
        worker = await bench.worker()
        await bench.start()
        bench.clock.advance(LEASE)
        assert (await bench.claim(worker)).runs == ()
        assert bench.store.renew(worker) is False
        assert (await bench.claim(WorkerId("nobody"))).runs == ()
        assert bench.store.renew(WorkerId("nobody")) is False

    @scenario
    async def test_renewing_keeps_the_run(self, bench: Bench) -> None:
        """A worker that renews keeps its runs beyond its first lease."""
        head = await bench.owned()
        for _ in range(3):
            bench.clock.advance(LEASE - SECOND)
            assert bench.store.renew(WorkerId("w1")) is True
        assert (await bench.claim(await bench.worker("w2"))).runs == ()
        await bench.apply(following(head))

    @scenario
    async def test_wall_clock_does_not_end_leases(self, bench: Bench) -> None:
        """A wall clock that jumps a day forward takes no run from anyone."""
        head = await bench.owned()
        bench.clock.set_wall(bench.clock.now() + timedelta(days=1))
        assert (await bench.claim(await bench.worker("w2"))).runs == ()
        await bench.apply(following(head))

    @scenario
    async def test_lapses_count_without_progress(self, bench: Bench) -> None:
        """Owners that die in a row are counted; an entry resets the count, giving back leaves it."""
        head = await bench.owned("run", "w0")
        for number in (1, 2):
            bench.clock.advance(LEASE)
            worker = await bench.worker(f"w{number}")
            head = await bench.claim_one(worker)
            assert head.lapses == number
        await bench.apply(parking(head, status=Status.READY))
        head = await bench.claim_one(WorkerId("w2"))
        assert head.lapses == 2
        await bench.apply(following(head))
        assert (await bench.head(head.run)).lapses == 0
        bench.clock.advance(LEASE)
        assert (await bench.claim_one(await bench.worker("w9"))).lapses == 1

    @scenario
    async def test_retired_worker_gives_back(self, bench: Bench) -> None:
        """Runs of a worker that retires are ready at once, and no lapse is counted."""
        head = await bench.owned()
        await bench.store.retire(WorkerId("w1"))
        after = await bench.head(head.run)
        assert (after.status, after.owner) == (Status.READY, None)
        bench.clock.advance(3 * SECOND)
        (taken,) = (await bench.claim(await bench.worker("w2"))).runs
        assert (taken.stopped_ago, taken.head.lapses) == (3 * SECOND, 0)
        assert bench.store.renew(WorkerId("w1")) is False
        await bench.store.retire(WorkerId("nobody"))

    @scenario
    async def test_unfit_build(self, bench: Bench) -> None:
        """A run that a build cannot continue is offered to other builds at once, to the same one for mail only."""
        head = await bench.owned()
        same, other = WorkerId("w1"), await bench.worker("w2", build="b2")
        wake_at = bench.clock.now() + SECOND
        await bench.apply(parking(head, status=Status.BLOCKED, unfit_build="b1", wake_at=wake_at))
        bench.clock.advance(2 * SECOND)
        assert (await bench.claim(same)).runs == ()
        await bench.apply(sending(head.run))
        taken = await bench.claim_one(same)
        await bench.apply(parking(taken, status=Status.BLOCKED, unfit_build="b1", ignore_mail=True))
        assert (await bench.claim(same)).runs == ()
        assert (await bench.claim_one(other)).run == head.run

    @scenario
    async def test_unfit_builds_are_all_remembered(self, bench: Bench) -> None:
        """Of several builds that do not fit none is offered the run again: it does not go to and fro between them."""
        head = await bench.owned()
        workers = [WorkerId("w1"), await bench.worker("w2", build="b2")]
        await bench.apply(parking(head, status=Status.BLOCKED, unfit_build="b1"))
        taken = await bench.claim_one(workers[1])
        await bench.apply(parking(taken, status=Status.BLOCKED, unfit_build="b2"))
        for worker in workers:
            claim = await bench.claim(worker)
            assert (claim.runs, claim.next_due) == ((), None)
        third = await bench.claim_one(await bench.worker("w3", build="b3"))
        wake_at = bench.clock.now() + SECOND
        await bench.apply(parking(third, wake_at=wake_at))
        assert (await bench.claim(WorkerId("w3"))).next_due == wake_at
        assert (await bench.claim(workers[0])).next_due is None
        bench.clock.advance(SECOND)
        assert [(await bench.claim(worker)).runs for worker in workers] == [(), ()]
        assert (await bench.claim_one(WorkerId("w3"))).run == head.run

    @scenario
    async def test_mail_does_not_make_a_build_fit(self, bench: Bench) -> None:
        """A build that took the run for its mail and gave it back is not offered it by time."""
        head = await bench.owned()
        await bench.apply(parking(head, status=Status.BLOCKED, unfit_build="b1"))
        await bench.apply(sending(head.run))
        taken = await bench.claim_one(WorkerId("w1"))
        await bench.apply(parking(taken, status=Status.READY, ignore_mail=True))
        assert (await bench.claim(WorkerId("w1"))).runs == ()

    @scenario
    async def test_progress_forgets_unfit_builds(self, bench: Bench) -> None:
        """After new entries every build may try again, but for one that the same change says does not fit."""
        head = await bench.owned()
        second = await bench.worker("w2", build="b2")
        await bench.apply(parking(head, status=Status.BLOCKED, unfit_build="b1"))
        taken = await bench.claim_one(second)
        change = parking(taken, entries=1, status=Status.BLOCKED, unfit_build="b2")
        await bench.apply(change)
        assert (await bench.claim(second)).runs == ()
        taken = await bench.claim_one(WorkerId("w1"))
        await bench.apply(following(taken))
        await bench.apply(parking(await bench.head(head.run), status=Status.READY))
        assert (await bench.claim_one(second)).run == head.run

    @scenario
    async def test_new_generation_knows_no_unfit_build(self, bench: Bench) -> None:
        """A restarted id is a new run: every build may try it."""
        head = await bench.owned()
        await bench.apply(parking(head, status=Status.BLOCKED, unfit_build="b1"))
        await bench.apply(Terminate(head.run, by="alice", reason="enough"))
        await bench.start(generation=2)
        assert (await bench.claim_one(WorkerId("w1"))).generation == 2

    @scenario
    async def test_suspects_are_taken_one_at_a_time(self, bench: Bench) -> None:
        """Of runs whose owners died again and again a worker owns one, beside any number of others."""
        names = ("a", "b", "c")
        for name in names:
            await bench.start(name)
        for number in range(SUSPECT_LAPSES):
            worker = await bench.worker(f"dying-{number}")
            assert len((await bench.claim(worker)).runs) == len(names)
            bench.clock.advance(LEASE)
        worker = await bench.worker()
        await bench.start("innocent")
        taken = (await bench.claim(worker)).runs
        assert [one.head.run.run_id for one in taken] == ["a", "innocent"]
        assert taken[0].head.lapses == SUSPECT_LAPSES
        assert (await bench.claim(worker)).runs == ()
        assert (await bench.claim_one(await bench.worker("w2"))).run.run_id == "b"
        await bench.apply(following(taken[0].head))
        assert (await bench.claim_one(worker)).run.run_id == "c"

    @scenario
    async def test_owned_runs(self, bench: Bench) -> None:
        """A worker finds what it owns, as it stands, by run and in every tenant, and nothing else."""
        worker, other = await bench.worker(), await bench.worker("w2")
        for name, tenant, owner in (
            ("b", "default", worker),
            ("a", "z", worker),
            ("a", "default", worker),
            ("c", "default", other),
            ("d", "default", None),
        ):
            await bench.start(name, tenant=tenant, worker=owner)
        await bench.apply(sending(RunKey("default", "a")))
        owned = await bench.store.owned(worker)
        runs = [RunKey("default", "a"), RunKey("default", "b"), RunKey("z", "a")]
        assert [head.run for head in owned] == runs
        assert owned[0] == await bench.head(runs[0])
        assert await bench.store.owned(WorkerId("nobody")) == []

    @scenario
    async def test_owned_no_more(self, bench: Bench) -> None:
        """What was given back, has ended, was taken over or left at retirement is not owned; a claimed run is."""
        worker = await bench.worker()
        for name in ("parked", "ended", "stopped", "kept"):
            await bench.start(name)
        heads = {one.head.run.run_id: one.head for one in (await bench.claim(worker)).runs}
        await bench.apply(parking(heads["parked"]))
        await bench.apply(ending(heads["ended"]))
        await bench.apply(Terminate(heads["stopped"].run, by="alice", reason="enough"))
        assert await bench.store.owned(worker) == [heads["kept"]]
        bench.clock.advance(LEASE)
        second = await bench.worker("w2")
        taken = await bench.claim_one(second)
        assert (await bench.store.owned(worker), await bench.store.owned(second)) == ([], [taken])
        await bench.store.retire(second)
        assert await bench.store.owned(second) == []

    @scenario
    async def test_workers_are_listed(self, bench: Bench) -> None:
        """Workers are listed with the age of their last sign of life."""
        await bench.worker("w1")
        bench.clock.advance(LEASE - SECOND)
        await bench.worker("w2")
        bench.clock.advance(SECOND)
        listed = await bench.store.workers()
        assert [(worker.row.worker, worker.live) for worker in listed] == [
            ("w1", False),
            ("w2", True),
        ]
        assert [worker.seen_ago for worker in listed] == [LEASE, SECOND]
        assert listed[0].row.workflows == ("fix",)
        assert listed[0].row.lease == LEASE

    @scenario
    async def test_new_generation_knows_the_former_owner(self, bench: Bench) -> None:
        """Whoever takes a later generation is told how long ago the id was last worked on."""
        head = await bench.owned()
        await bench.apply(ending(head))
        await bench.start(generation=2)
        bench.clock.advance(SECOND)
        (taken,) = (await bench.claim(WorkerId("w1"))).runs
        assert taken.stopped_ago == SECOND

    @scenario
    async def test_claims_keep_tenants_apart(self, bench: Bench) -> None:
        """Runs of the same id in two tenants are two runs."""
        worker = await bench.worker()
        one, two = await bench.start(tenant="a"), await bench.start(tenant="b")
        taken = (await bench.claim(worker)).runs
        assert (
            {claimed.head.run for claimed in taken}
            == {one, two}
            == {RunKey("a", "run"), RunKey("b", "run")}
        )
