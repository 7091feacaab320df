"""What a store promises of approvals: decided once, in time, on the hash that was asked; spent once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from outlast.store.change import (
    Applied,
    ApprovalExpire,
    ApprovalRow,
    ApprovalWithdraw,
    Decide,
    GrantSpend,
    Message,
    MessageKind,
    Refused,
    RunHead,
    RunKey,
    WorkerId,
)
from outlast.testing.conformance.bench import (
    Bench,
    asking,
    ending,
    following,
    parking,
    scenario,
    starting,
)

HOUR = timedelta(hours=1)
LONG = timedelta(days=9)
EVER = datetime(2126, 1, 1, tzinfo=UTC)


def deciding(run: RunKey, **fields: Any) -> Decide:
    """Return a decision of the suite's request."""
    given: dict[str, Any] = {
        "approval_id": "a1",
        "seen_sha256": "s",
        "approved": True,
        "by": "bob",
        "message": Message("d1", MessageKind.DECISION, "a1", "bob", b"{}"),
    }
    return Decide(run=run, **{**given, **fields})


def spending(cover: int = 0, match: str = "h1", operation: str = "r:2") -> GrantSpend:
    """Return the spending of one cover."""
    return GrantSpend("a1", cover, operation, match)


async def requested(bench: Bench, **fields: Any) -> RunHead:
    """Return the head of a run that has asked for approval, by these fields of its request."""
    worker = await bench.worker(lease=LONG)
    run = await bench.start(worker=worker)
    change = following(await bench.head(run), approvals=(asking(bench.clock, **fields),))
    await bench.apply(change)
    return await bench.head(run)


async def standing(bench: Bench, run: RunKey) -> ApprovalRow:
    """Return the run's only approval."""
    image = await bench.store.load(run)
    assert image is not None
    (row,) = image.approvals
    return row


async def paged(bench: Bench, **wanted: Any) -> list[str]:
    """Return the requests of a tenant as `run/id`, read one by one and three by three, which is the same."""
    found: list[list[str]] = []
    for size in (1, 3):
        rows: list[ApprovalRow] = []
        after: tuple[Any, str, str] | None = None
        while page := await bench.store.approvals("default", limit=size, after=after, **wanted):
            rows += page
            last = rows[-1]
            after = (last.requested_at, last.run.run_id, last.put.approval_id)
        assert rows == await bench.store.approvals("default", **wanted)
        found.append([f"{row.run.run_id}/{row.put.approval_id}" for row in rows])
    assert found[0] == found[1]
    return found[0]


class ApprovalConformance:
    """Requests, decisions, grants."""

    @scenario
    async def test_request_is_listed(self, bench: Bench) -> None:
        """A request is pending, with what was asked, in its tenant alone."""
        head = await requested(bench)
        (row,) = await bench.store.approvals("default")
        assert row == await standing(bench, head.run)
        assert (row.run, row.put, row.state, row.spent) == (
            head.run,
            asking(bench.clock),
            "pending",
            ("", ""),
        )
        assert row.requested_at == bench.clock.now()
        assert await bench.store.approvals("other") == []
        verdict = await bench.one(following(head, approvals=(asking(bench.clock),)))
        assert verdict == Refused("exists", "a1")

    @scenario
    async def test_requests_are_listed_page_by_page(self, bench: Bench) -> None:
        """Each request is on one page, oldest first, also among those that were made at once; one run's, pending ones, and all."""
        worker = await bench.worker(lease=LONG)
        for name in ("b", "a"):
            run = await bench.start(name, worker=worker)
            for ids in (("a2", "a1"), ("a0", "a3")):
                puts = tuple(asking(bench.clock, one, expires_at=EVER) for one in ids)
                await bench.apply(following(await bench.head(run), approvals=puts))
                bench.clock.advance(HOUR if name == "b" and "a0" in ids else 0 * HOUR)
        await bench.apply(deciding(RunKey("default", "b")))
        await bench.start("c", tenant="other", worker=worker)
        strange = await bench.head(RunKey("other", "c"))
        await bench.apply(following(strange, approvals=(asking(bench.clock),)))
        every = [f"{run}/a{number}" for run in "ba" for number in range(4)]
        waiting = [one for one in every if one != "b/a1"]
        assert await paged(bench, pending=False) == every
        assert await paged(bench) == waiting
        for run in "ab":
            key = RunKey("default", run)
            assert await paged(bench, run=key) == [one for one in waiting if one[0] == run]
            of_run = [one for one in every if one[0] == run]
            assert await paged(bench, run=key, pending=False) == of_run
        for none in (0, -1):
            assert await bench.store.approvals("default", limit=none) == []
        assert await bench.store.approvals("default", run=strange.run) == []

    @scenario
    async def test_page_is_not_shortened_by_what_is_over(self, bench: Bench) -> None:
        """A request whose time is over takes no place among those that wait, whoever has closed it."""
        head = await requested(bench)
        await bench.apply(following(head, approvals=(asking(bench.clock, "a2", expires_at=EVER),)))
        bench.clock.advance(HOUR)
        for run in (None, head.run):
            (row,) = await bench.store.approvals("default", run=run, limit=1)
            assert row.put.approval_id == "a2"

    @scenario
    async def test_decision_is_delivered_once(self, bench: Bench) -> None:
        """A decision closes the request and wakes the run with a message; the same one again changes nothing."""
        head = await requested(bench)
        await bench.apply(parking(head))
        bench.clock.advance(HOUR / 2)
        applied = await bench.apply(deciding(head.run))
        row = await standing(bench, head.run)
        assert (row.state, row.decided_at, row.by) == ("approved", bench.clock.now(), "bob")
        assert await bench.apply(deciding(head.run)) == Applied(applied.at)
        assert (await bench.claim_one(WorkerId("w1"))).mail
        image = await bench.store.load(head.run)
        assert image is not None
        assert [stamped.message.kind for stamped in image.messages] == [MessageKind.DECISION]
        assert await bench.store.approvals("default") == []
        assert len(await bench.store.approvals("default", pending=False)) == 1

    @scenario
    async def test_decision_of_the_former_run_decides_nothing(self, bench: Bench) -> None:
        """The request of a restarted id is another one, also for a decision that has the same id."""
        head = await requested(bench)
        await bench.apply(deciding(head.run))
        await bench.apply(ending(head, consumed=("d1",)))
        assert await bench.one(deciding(head.run)) == Applied(bench.clock.now())
        await bench.start(generation=2, worker=WorkerId("w1"))
        assert await bench.one(deciding(head.run)) == Refused("unknown", "a1")
        second = await bench.head(head.run)
        await bench.apply(following(second, approvals=(asking(bench.clock),)))
        await bench.apply(deciding(head.run))
        (mail,) = await bench.store.mail(head.run)
        assert mail.message.message_id == "d1"
        image = await bench.store.load(head.run)
        assert image is not None
        assert [row.state for row in image.approvals] == ["approved"]

    @scenario
    async def test_decision_must_fit(self, bench: Bench) -> None:
        """Unknown, on another hash, second and late decisions are refused, each with its word."""
        head = await requested(bench)
        other = Message("d2", MessageKind.DECISION, "a1", "eve", b"{}")
        unknown = deciding(head.run, approval_id="a9")
        assert await bench.one(unknown) == Refused("unknown", "a9")
        assert await bench.one(deciding(RunKey("default", "no"))) == Refused("unknown", "a1")
        assert await bench.one(deciding(RunKey("other", "run"))) == Refused("unknown", "a1")
        assert await bench.one(deciding(head.run, seen_sha256="t")) == Refused("mismatch", "a1")
        assert (await bench.head(head.run)).mail is False
        await bench.apply(deciding(head.run, approved=False))
        assert (await standing(bench, head.run)).state == "denied"
        assert await bench.one(deciding(head.run, message=other)) == Refused("decided", "a1")

    @scenario
    async def test_late_decision_is_void(self, bench: Bench) -> None:
        """At the deadline it is too late, whether or not anyone has closed the request."""
        head = await requested(bench)
        bench.clock.advance(HOUR)
        assert await bench.one(deciding(head.run)) == Refused("expired", "a1")
        assert await bench.store.approvals("default") == []
        (listed,) = await bench.store.approvals("default", pending=False)
        assert listed.state == "expired"
        assert (await standing(bench, head.run)).state == "pending"
        await bench.apply(following(head, approvals=(ApprovalExpire("a1"),)))
        assert (await standing(bench, head.run)).state == "expired"
        assert await bench.one(deciding(head.run)) == Refused("expired", "a1")

    @scenario
    async def test_expiry_is_conditional(self, bench: Bench) -> None:
        """A request cannot be expired before its time, nor after a decision."""
        head = await requested(bench)
        expire = following(head, approvals=(ApprovalExpire("a1"),))
        assert await bench.one(expire) == Refused("not_due", "a1")
        await bench.apply(deciding(head.run))
        bench.clock.advance(HOUR)
        assert await bench.one(expire) == Refused("decided", "a1")
        verdict = await bench.one(following(head, approvals=(ApprovalExpire("a9"),)))
        assert verdict == Refused("unknown", "a9")

    @scenario
    async def test_withdrawing(self, bench: Bench) -> None:
        """A withdrawn request cannot be decided; withdrawing again, or a decided one, is no error."""
        head = await requested(bench)
        await bench.apply(following(head, approvals=(ApprovalWithdraw("a1"),)))
        assert (await standing(bench, head.run)).state == "withdrawn"
        assert await bench.one(deciding(head.run)) == Refused("withdrawn", "a1")
        await bench.apply(
            following(await bench.head(head.run), approvals=(ApprovalWithdraw("a1"),))
        )

    @scenario
    async def test_closing_withdraws(self, bench: Bench) -> None:
        """The end of a run withdraws what it had asked; the next generation may ask under the same id."""
        head = await requested(bench)
        await bench.apply(ending(head))
        assert await bench.one(deciding(head.run)) == Refused("withdrawn", "a1")
        await bench.apply(starting(generation=2, worker=WorkerId("w1")))
        assert await bench.one(deciding(head.run)) == Refused("unknown", "a1")
        again = await bench.head(head.run)
        await bench.apply(following(again, approvals=(asking(bench.clock),)))
        assert (await standing(bench, head.run)).state == "pending"
        assert len(await bench.store.approvals("default", pending=False, run=head.run)) == 2

    @scenario
    async def test_grant_is_spent_once(self, bench: Bench) -> None:
        """Each cover goes to one operation; spending again to the same one is no error."""
        head = await requested(bench)
        await bench.apply(deciding(head.run))
        await bench.apply(following(head, spends=(spending(), spending(1, "h2", "r:3"))))
        assert (await standing(bench, head.run)).spent == ("r:2", "r:3")
        after = await bench.head(head.run)
        await bench.apply(following(after, spends=(spending(),)))
        after = await bench.head(head.run)
        verdict = await bench.one(following(after, spends=(spending(operation="r:9"),)))
        assert verdict == Refused("spent", "a1")

    @scenario
    async def test_two_spends_in_one_change(self, bench: Bench) -> None:
        """One change cannot spend a cover to two operations."""
        head = await requested(bench)
        await bench.apply(deciding(head.run))
        change = following(head, spends=(spending(), spending(operation="r:3")))
        assert await bench.one(change) == Refused("spent", "a1")
        assert (await standing(bench, head.run)).spent == ("", "")

    @scenario
    async def test_spending_is_checked_in_order(self, bench: Bench) -> None:
        """A spend is refused as expired, mismatched or unapproved, in this order."""
        head = await requested(bench)
        wrong = following(head, spends=(spending(match="x"),))
        outside = following(head, spends=(spending(cover=2),))
        right = following(head, spends=(spending(),))
        assert await bench.one(wrong) == Refused("mismatch", "a1")
        assert await bench.one(outside) == Refused("mismatch", "a1")
        assert await bench.one(right) == Refused("unapproved", "a1")
        await bench.apply(deciding(head.run, approved=False))
        assert await bench.one(right) == Refused("unapproved", "a1")
        bench.clock.advance(2 * HOUR)
        assert await bench.one(wrong) == Refused("expired", "a1")
        unknown = following(head, spends=(GrantSpend("a9", 0, "r:2", "h1"),))
        assert await bench.one(unknown) == Refused("unapproved", "a9")
