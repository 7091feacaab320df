"""What a store promises of paused runs, and of runs that are taken from their owner: who is offered what, and who is told."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from outlast.store.change import (
    HeadUpdate,
    MessageKind,
    PutMessage,
    RunKey,
    Status,
    Terminate,
    WorkerId,
)
from outlast.store.condition import RECALLS
from outlast.testing.conformance.bench import (
    LEASE,
    WORKFLOW,
    Bench,
    following,
    letter,
    parking,
    row,
    scenario,
    sending,
)

SECOND = timedelta(seconds=1)


def asking(run: RunKey, kind: MessageKind, message_id: str = "") -> PutMessage:
    """Return the putting of an item of some kind."""
    return PutMessage(
        run, replace(letter(message_id or f"{kind.value}/1"), kind=kind, name="", body=b"{}")
    )


class PauseConformance:
    """Pausing, resuming, and what an owner is told of a termination."""

    @scenario
    async def test_paused_run_is_left_alone(self, bench: Bench) -> None:
        """Neither time nor any mail but a resume or a cancel wakes a paused run; all of it is kept."""
        head = await bench.owned()
        await bench.apply(parking(head, status=Status.PAUSED, wake_at=bench.clock.now()))
        others = [kind for kind in MessageKind if kind not in RECALLS]
        for kind in others:
            await bench.apply(asking(head.run, kind))
        bench.clock.advance(SECOND)
        claim = await bench.claim(WorkerId("w1"))
        assert (claim.runs, claim.next_due) == ((), None)
        paused = await bench.head(head.run)
        assert (paused.status, paused.owner, paused.mail) == (Status.PAUSED, None, True)
        assert len(await bench.store.mail(head.run)) == len(others)

    @scenario
    async def test_resume_and_cancel_offer_a_paused_run(self, bench: Bench) -> None:
        """It is paused until it is claimed, and what came after the resume does not take the offer back."""
        worker = await bench.worker()
        for name in ("resume", "cancel"):
            head = await bench.head(await bench.start(name, worker=worker))
            await bench.apply(parking(head, status=Status.PAUSED))
            await bench.apply(sending(head.run))
            await bench.apply(asking(head.run, MessageKind(name)))
            await bench.apply(sending(head.run, "later"))
            assert (await bench.head(head.run)).status is Status.PAUSED
        taken = [one.head for one in (await bench.claim(worker)).runs]
        assert [one.run.run_id for one in taken] == ["cancel", "resume"]
        assert {one.status for one in taken} == {Status.RUNNING}
        assert len(await bench.store.mail(taken[0].run)) == 3

    @scenario
    async def test_resume_that_comes_during_the_parking_offers_the_run(self, bench: Bench) -> None:
        """What the owner had not read when it gave the run back as paused is not slept through; what it has read is over."""
        head = await bench.owned()
        await bench.apply(asking(head.run, MessageKind.RESUME))
        await bench.apply(parking(head, status=Status.PAUSED))
        taken = await bench.claim_one(WorkerId("w1"))
        await bench.apply(sending(head.run))
        update = HeadUpdate(status=Status.PAUSED, release=True)
        await bench.apply(following(taken, head=update, consumed=("resume/1",)))
        assert (await bench.claim(WorkerId("w1"))).runs == ()

    @scenario
    async def test_owner_of_a_paused_run_dies(self, bench: Bench) -> None:
        """A run that was marked as paused and never given back stays paused, and is offered when somebody has resumed it."""
        worker = await bench.worker()
        for name in ("left", "resumed"):
            head = await bench.head(await bench.start(name, worker=worker))
            await bench.apply(following(head, head=HeadUpdate(Status.PAUSED)))
            await bench.apply(sending(head.run))
        await bench.apply(asking(RunKey("default", "resumed"), MessageKind.RESUME))
        bench.clock.advance(LEASE)
        taken = await bench.claim_one(await bench.worker("w2"))
        assert (taken.run.run_id, taken.lapses) == ("resumed", 1)
        left = await bench.head(RunKey("default", "left"))
        assert (left.status, left.owner) == (Status.PAUSED, None)

    @scenario
    async def test_owner_of_a_paused_run_that_rolled_over_dies(self, bench: Bench) -> None:
        """Its inbox is the one of its first generation: a resume that waits there offers it, as it does any other."""
        head = await bench.owned()
        begun = (replace(row(0, kind="started"), name=WORKFLOW),)
        await bench.apply(following(head, head=HeadUpdate(Status.READY, release=True), next=begun))
        taken = await bench.claim_one(WorkerId("w1"))
        await bench.apply(following(taken, head=HeadUpdate(Status.PAUSED)))
        bench.clock.advance(LEASE)
        second = await bench.worker("w2")
        assert (await bench.claim(second)).runs == ()
        await bench.apply(asking(head.run, MessageKind.RESUME))
        taken = await bench.claim_one(second)
        await bench.apply(following(taken, head=HeadUpdate(Status.PAUSED)))
        bench.clock.advance(LEASE)
        taken = await bench.claim_one(await bench.worker("w3"))
        assert (taken.generation, taken.incarnation) == (2, 1)

    @scenario
    async def test_resume_of_a_run_that_is_not_paused_is_mail(self, bench: Bench) -> None:
        """A waiting run is offered for any of these."""
        head = await bench.owned()
        for kind in (MessageKind.PAUSE, MessageKind.RESUME):
            await bench.apply(parking(head))
            await bench.apply(asking(head.run, kind))
            taken = await bench.claim_one(WorkerId("w1"))
            await bench.apply(following(taken, consumed=(f"{kind.value}/1",)))
            head = await bench.head(head.run)

    @scenario
    async def test_worker_is_told_how_many_runs_it_holds(self, bench: Bench) -> None:
        """What was terminated, or given back, is not counted any more; what a claim brings is."""
        worker = await bench.worker()
        for name in ("a", "b", "c"):
            await bench.start(name)
        claim = await bench.claim(worker)
        assert (len(claim.runs), claim.held) == (3, 3)
        heads = {one.head.run.run_id: one.head for one in claim.runs}
        await bench.apply(Terminate(heads["a"].run, by="alice", reason="enough"))
        assert (await bench.claim(worker)).held == 2
        await bench.apply(parking(heads["b"]))
        assert (await bench.claim(worker)).held == 1
        assert (await bench.claim(await bench.worker("w2"))).held == 0
