"""What a store promises of its figures: they count what is open, by the store's clock, and what has ended is in none of them."""

from __future__ import annotations

from datetime import timedelta

from outlast.store.change import (
    ApprovalWithdraw,
    OperationPut,
    OutboxItem,
    OutboxKind,
    RunKey,
    Status,
    Terminate,
    WorkerId,
)
from outlast.store.figures import NOTHING, OPEN, Backlog, Figures
from outlast.store.protocol import RELAY_AFTER
from outlast.testing.conformance.bench import (
    LEASE,
    Bench,
    asking,
    ending,
    following,
    parking,
    scenario,
    sending,
)
from outlast.testing.conformance.notice import asked
from outlast.testing.conformance.request import HOLD, beginning
from outlast.testing.conformance.task import putting

SECOND = timedelta(seconds=1)
DOUBT = OperationPut("r:1", "effect", "pay", 1, in_doubt=True)


class FiguresConformance:
    """What an operator looks at first."""

    @scenario
    async def test_an_empty_store_has_figures(self, bench: Bench) -> None:
        """Each open status is there, at nothing; so is what could wait."""
        nothing = Figures(bench.clock.now(), {status.value: 0 for status in OPEN})
        assert await bench.store.figures() == await bench.store.figures("default") == nothing
        assert await bench.store.figures("\udcff") == nothing
        assert nothing.waiting == NOTHING

    @scenario
    async def test_open_runs_are_counted_by_status(self, bench: Bench) -> None:
        """By status, the blocked ones by their reason too, of one tenant or of all; none that has ended."""
        worker = await bench.worker()
        shapes = [
            (Status.WAITING, ""),
            (Status.BLOCKED, "in doubt"),
            (Status.BLOCKED, "in doubt"),
            (Status.BLOCKED, "poison"),
            (Status.PAUSED, ""),
        ]
        for number, (status, reason) in enumerate(shapes):
            head = await bench.head(await bench.start(f"r{number}", worker=worker))
            await bench.apply(parking(head, status=status, reason=reason))
        await bench.start("ready")
        await bench.start("running", worker=worker, tenant="other")
        ended = await bench.head(await bench.start("ended", worker=worker))
        await bench.apply(ending(ended))
        killed = await bench.start("killed", tenant="third")
        await bench.apply(Terminate(killed, "admin", "no more"))
        found = await bench.store.figures()
        wanted = {"ready": 1, "running": 1, "waiting": 1, "blocked": 3, "paused": 1}
        assert found.runs == wanted
        assert found.blocked == {"in doubt": 2, "poison": 1}
        other = await bench.store.figures("other")
        assert other.runs == {**dict.fromkeys(wanted, 0), "running": 1}
        assert other.blocked == other.unclaimed == {}

    @scenario
    async def test_what_could_go_on_and_has_no_owner(self, bench: Bench) -> None:
        """By workflow, with the age of the one that waits longest: what is ready, due, or has mail that offers it; not what is owned or waits."""
        worker = await bench.worker()
        heads = [
            await bench.head(await bench.start(name, worker=worker)) for name in ("due", "mail")
        ]
        await bench.apply(parking(heads[0], wake_at=bench.clock.now() + 3 * SECOND))
        await bench.apply(parking(heads[1]))
        assert (await bench.store.figures()).unclaimed == {}
        await bench.start("ready", workflow="other")
        bench.clock.advance(2 * SECOND)
        await bench.apply(sending(heads[1].run))
        bench.clock.advance(2 * SECOND)
        found = await bench.store.figures()
        assert found.unclaimed == {"fix": Backlog(2, 2.0), "other": Backlog(1, 4.0)}
        assert found.waiting == Backlog(3, 4.0)
        assert (await bench.store.figures("elsewhere")).unclaimed == {}
        await bench.claim(worker)
        assert list((await bench.store.figures()).unclaimed) == ["other"]

    @scenario
    async def test_what_waits_for_other_code_is_not_unclaimed(self, bench: Bench) -> None:
        """A run that no known build fits is blocked, and waits for nobody's claim; mail offers it to all."""
        head = await bench.owned()
        await bench.apply(
            parking(head, status=Status.BLOCKED, reason="non-determinism", unfit_build="b1")
        )
        assert (await bench.store.figures()).unclaimed == {}
        await bench.apply(sending(head.run))
        assert list((await bench.store.figures()).unclaimed) == ["fix"]

    @scenario
    async def test_a_lapsed_worker_and_what_it_leaves(self, bench: Bench) -> None:
        """It is counted until it is buried, and its runs are orphaned; then they are claimed, and known to have lost an owner."""
        head = await bench.owned()
        await bench.start("other", tenant="other", worker=WorkerId("w1"))
        found = await bench.store.figures()
        assert (found.workers_live, found.workers_lapsed, found.orphaned) == (1, 0, 0)
        bench.clock.advance(LEASE)
        found = await bench.store.figures()
        assert (found.workers_live, found.workers_lapsed, found.orphaned) == (0, 1, 2)
        assert (await bench.store.figures("other")).orphaned == 1
        await bench.claim(await bench.worker("w2"))
        found = await bench.store.figures()
        assert (found.workers_live, found.workers_lapsed) == (1, 0)
        assert (found.orphaned, found.lapsed) == (0, 2)
        await bench.apply(following(await bench.head(head.run)))
        assert (await bench.store.figures()).lapsed == 1
        await bench.apply(Terminate(RunKey("other", "other"), "admin", "no more"))
        assert (await bench.store.figures()).lapsed == 0

    @scenario
    async def test_mail_that_an_owner_has_yet_to_read(self, bench: Bench) -> None:
        """A run is counted once, however much mail it has, and until it has read all of it."""
        head = await bench.owned()
        await bench.apply(sending(head.run, "m1"))
        await bench.apply(sending(head.run, "m2"))
        assert (await bench.store.figures()).unread == 1
        assert (await bench.store.figures("other")).unread == 0
        await bench.apply(following(await bench.head(head.run), consumed=("m1", "m2")))
        assert (await bench.store.figures()).unread == 0

    @scenario
    async def test_effects_and_requests_in_doubt(self, bench: Bench) -> None:
        """Both are counted while they are; a request's doubt begins when it is held no longer."""
        head = await bench.owned()
        await bench.apply(following(head, operations=(DOUBT,)))
        await bench.apply(beginning("k1"))
        await bench.apply(beginning("k2", tenant="other"))
        found = await bench.store.figures()
        assert (found.in_doubt, found.requests_in_doubt) == (1, 0)
        bench.clock.advance(HOLD)
        assert (await bench.store.figures()).requests_in_doubt == 2
        other = await bench.store.figures("other")
        assert (other.in_doubt, other.requests_in_doubt) == (0, 1)
        await bench.apply(Terminate(head.run, "admin", "no more"))
        assert (await bench.store.figures()).in_doubt == 0

    @scenario
    async def test_requests_to_people(self, bench: Bench) -> None:
        """Those that can still be decided, with the age of the oldest; word that is due is counted until it is sent, or nobody waits for it."""
        head = await asked(bench)
        bench.clock.advance(60 * SECOND)
        await bench.apply(following(head, approvals=(asking(bench.clock, "a2"),)))
        bench.clock.advance(SECOND)
        found = await bench.store.figures()
        assert found.approvals == Backlog(2, 61.0)
        assert found.notices == Backlog(2, 61.0)
        other = await bench.store.figures("other")
        assert other.approvals == other.notices == NOTHING
        withdraw = (ApprovalWithdraw("a1"),)
        await bench.apply(following(await bench.head(head.run), approvals=withdraw))
        found = await bench.store.figures()
        assert found.approvals == found.notices == Backlog(1, 1.0)
        bench.clock.advance(timedelta(days=30))
        assert (await bench.store.figures()).approvals == NOTHING

    @scenario
    async def test_what_the_relay_is_late_with(self, bench: Bench) -> None:
        """An item counts from when it is anybody's, with its whole age."""
        head = await bench.owned()
        item = OutboxItem(RunKey("default", "other"), OutboxKind.SIGNAL, "m1", "go", "run")
        await bench.apply(following(head, outbox=(item,)))
        bench.clock.advance(RELAY_AFTER - timedelta(milliseconds=1))
        assert (await bench.store.figures()).outbox == NOTHING
        bench.clock.advance(timedelta(milliseconds=1))
        assert (await bench.store.figures()).outbox == Backlog(1, RELAY_AFTER.total_seconds())
        assert (await bench.store.figures("other")).outbox == NOTHING

    @scenario
    async def test_steps_that_wait_in_queues(self, bench: Bench) -> None:
        """By queue, from when they can be taken until they are; none while their run is paused."""
        head = await bench.owned()
        later = bench.clock.now() + 5 * SECOND
        puts = (putting(), putting("r:2"), putting("r:3", due_at=later), putting("r:4", queue="x"))
        await bench.apply(following(head, tasks=puts))
        bench.clock.advance(2 * SECOND)
        queue = puts[0].queue
        wanted = {queue: Backlog(2, 2.0), "x": Backlog(1, 2.0)}
        assert (await bench.store.figures()).tasks == wanted
        assert (await bench.store.figures("other")).tasks == {}
        names = frozenset({puts[0].name})
        await bench.store.claim_tasks(WorkerId("w1"), frozenset({"x"}), names, limit=5)
        assert list((await bench.store.figures()).tasks) == [queue]
        await bench.apply(following(await bench.head(head.run), hold=True))
        assert (await bench.store.figures()).tasks == {}

    @scenario
    async def test_a_report_is_the_last_one(self, bench: Bench) -> None:
        """What a worker says of itself is listed with it, renews nothing, and goes with it; a stranger says nothing."""
        worker = await bench.worker()
        await bench.worker("w2")
        assert [one.report for one in await bench.store.workers()] == [b"", b""]
        bench.clock.advance(SECOND)
        await bench.store.report(worker, b"{}")
        await bench.store.report(worker, b'{"a": 1}')
        await bench.store.report(WorkerId("nobody"), b"{}")
        first, second = await bench.store.workers()
        assert (first.report, second.report) == (b'{"a": 1}', b"")
        assert first.seen_ago == SECOND
        await bench.worker()
        assert (await bench.store.workers())[0].report == b""
