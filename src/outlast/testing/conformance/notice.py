"""What a store promises of notices: written with the request, had by one sender at a time, gone when nobody has to decide any more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from outlast.journal.asking import Terms
from outlast.store.change import (
    Applied,
    ApprovalExpire,
    ApprovalWithdraw,
    Decide,
    DueNotice,
    HeadUpdate,
    Message,
    MessageKind,
    Refused,
    RunHead,
    RunKey,
    Status,
    Terminate,
)
from outlast.store.notice import EndNotice, NoticeRow, TakeNotices
from outlast.testing.conformance.bench import (
    Bench,
    asking,
    ending,
    following,
    parking,
    row,
    scenario,
    starting,
)

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
LONG = timedelta(days=9)


def reminding(bench: Bench, approval_id: str = "a1", **fields: Any) -> Any:
    """Return a request of an hour, of which people are reminded after 20 and after 90 minutes."""
    terms = Terms("boss", HOUR, remind=(20 * MINUTE, 90 * MINUTE), quorum=2, edits="yes")
    return asking(bench.clock, approval_id, terms=terms, **fields)


async def asked(bench: Bench, name: str = "run", tenant: str = "default") -> RunHead:
    """Return the head of a run that has asked."""
    worker = await bench.worker(f"w-{tenant}-{name}", lease=LONG)
    run = await bench.start(name, tenant=tenant, worker=worker)
    await bench.apply(following(await bench.head(run), approvals=(reminding(bench),)))
    return await bench.head(run)


async def take(bench: Bench, tenant: str = "", limit: int = 10) -> list[DueNotice]:
    """Take what is due, for a minute."""
    return list((await bench.apply(TakeNotices(tenant, limit, MINUTE))).notices)


def ended(notice: NoticeRow, *, sent: bool = True, **fields: Any) -> EndNotice:
    """Return what became of a notice."""
    return EndNotice(
        notice.tenant,
        notice.run_id,
        notice.generation,
        notice.approval_id,
        notice.notice,
        fields.pop("tries", notice.tries),
        sent,
        **fields,
    )


def vote(run: RunKey, by: str, **fields: Any) -> Decide:
    """Return a yes of one person."""
    message = Message(f"d/{by}", MessageKind.DECISION, "a1", by, b"{}")
    given: dict[str, Any] = {"approved": True, **fields}
    return Decide(run, "a1", "s", by=by, message=message, **given)


async def _denied(bench: Bench, head: RunHead) -> None:
    await bench.apply(vote(head.run, "bob", approved=False))


async def _edited(bench: Bench, head: RunHead) -> None:
    await bench.apply(vote(head.run, "bob", approved=False, edit=True))


async def _approved(bench: Bench, head: RunHead) -> None:
    await bench.apply(vote(head.run, "bob"))
    assert len(await bench.store.notices(head.run)) == 2, "one vote of two leaves people to decide"
    await bench.apply(vote(head.run, "eve"))


async def _withdrawn(bench: Bench, head: RunHead) -> None:
    await bench.apply(following(head, approvals=(ApprovalWithdraw("a1"),)))


async def _expired(bench: Bench, head: RunHead) -> None:
    bench.clock.advance(HOUR)
    await bench.apply(following(head, approvals=(ApprovalExpire("a1"),)))


async def _ended(bench: Bench, head: RunHead) -> None:
    await bench.apply(ending(head))


async def _terminated(bench: Bench, head: RunHead) -> None:
    await bench.apply(Terminate(head.run, "op", "enough"))


async def _rolled_over(bench: Bench, head: RunHead) -> None:
    back = HeadUpdate(Status.READY, release=True)
    await bench.apply(following(head, head=back, next=(row(0, kind="started"),)))


CLOSINGS: tuple[Callable[[Bench, RunHead], Awaitable[None]], ...] = (
    _denied,
    _edited,
    _approved,
    _withdrawn,
    _expired,
    _ended,
    _terminated,
    _rolled_over,
)


class NoticeConformance:
    """Notices."""

    @scenario
    async def test_a_request_brings_its_notices(self, bench: Bench) -> None:
        """One for the asking, one for each reminder before its end; the verdict brings notice, request and workflow."""
        assert await bench.store.next_notice() is None
        head = await asked(bench)
        now = bench.clock.now()
        first, second = await bench.store.notices(head.run)
        assert (first.notice, first.due_at, first.state, first.tries) == ("asked", now, "open", 0)
        assert (second.notice, second.due_at) == ("reminder-1", now + 20 * MINUTE)
        assert first.expires_at == now + HOUR
        assert await bench.store.next_notice() == now
        (due,) = await take(bench)
        assert (due.asked.put, due.asked.state) == (reminding(bench), "pending")
        assert due.workflow == "fix"
        (kept, _) = await bench.store.notices(head.run)
        assert due.notice == kept
        assert (kept.tries, kept.due_at) == (1, now + MINUTE)

    @scenario
    async def test_a_request_that_is_decided_when_it_is_made_brings_none(
        self, bench: Bench
    ) -> None:
        """It was made and withdrawn in one change."""
        head = await bench.owned()
        acts = (reminding(bench), ApprovalWithdraw("a1"))
        await bench.apply(following(head, approvals=acts))
        assert await bench.store.notices(head.run) == []

    @scenario
    async def test_a_refused_change_brings_none(self, bench: Bench) -> None:
        """Notices are of the transaction that asks."""
        head = await bench.owned()
        acts = (reminding(bench), ApprovalExpire("a1"))
        assert await bench.one(following(head, approvals=acts)) == Refused("not_due", "a1")
        assert await bench.store.notices(head.run) == []
        assert await bench.store.next_notice() is None

    @scenario
    async def test_one_sender_has_a_notice_at_a_time(self, bench: Bench) -> None:
        """What is taken is nobody else's until its time is over; then it is due again."""
        await asked(bench)
        assert len(await take(bench)) == 1
        assert await take(bench) == []
        assert await bench.store.next_notice() == bench.clock.now() + MINUTE
        bench.clock.advance(MINUTE)
        (again,) = await take(bench)
        assert again.notice.tries == 2

    @scenario
    async def test_what_is_sent_is_not_sent_again(self, bench: Bench) -> None:
        """It stays to be looked at, and the reminder comes in its time."""
        head = await asked(bench)
        (due,) = await take(bench)
        await bench.apply(ended(due.notice, reached=("mail",)))
        sent, _ = await bench.store.notices(head.run)
        assert (sent.state, sent.reached) == ("sent", ("mail",))
        assert await bench.store.next_notice() == bench.clock.now() + 20 * MINUTE
        bench.clock.advance(20 * MINUTE)
        (reminder,) = await take(bench)
        assert reminder.notice.notice == "reminder-1"

    @scenario
    async def test_a_failed_try_is_due_again(self, bench: Bench) -> None:
        """After the gap, with what it has reached and what went wrong; not beyond the end of the request."""
        head = await asked(bench)
        (due,) = await take(bench)
        gap = timedelta(seconds=4)
        await bench.apply(
            ended(due.notice, sent=False, reached=("chat",), retry_in=gap, trouble=b"mail: no")
        )
        first, _ = await bench.store.notices(head.run)
        assert (first.state, first.trouble) == ("open", b"mail: no")
        assert await take(bench) == []
        bench.clock.advance(gap)
        (due,) = await take(bench)
        assert due.notice.reached == ("chat",)
        await bench.apply(ended(due.notice, sent=False, retry_in=HOUR, trouble=b"x" * 9999))
        first, _ = await bench.store.notices(head.run)
        assert (first.state, len(first.trouble)) == ("failed", 2048)
        bench.clock.advance(2 * MINUTE)
        assert await take(bench) == []

    @scenario
    async def test_a_notice_is_given_up(self, bench: Bench) -> None:
        """Without another try it has failed."""
        head = await asked(bench)
        (due,) = await take(bench)
        await bench.apply(ended(due.notice, sent=False))
        assert (await bench.store.notices(head.run))[0].state == "failed"

    @scenario
    async def test_late_words_of_a_sender(self, bench: Bench) -> None:
        """That it was sent counts, that it was not does not once another one has it; of no notice nothing can be said."""
        await asked(bench)
        (early,) = await take(bench)
        bench.clock.advance(MINUTE)
        (late,) = await take(bench)
        failed = ended(early.notice, sent=False, retry_in=MINUTE)
        assert await bench.one(failed) == Refused("taken", "asked")
        assert isinstance(await bench.one(ended(early.notice)), Applied)
        # Told again, and by the one that failed meanwhile: it stays sent.
        assert isinstance(await bench.one(ended(early.notice)), Applied)
        assert isinstance(await bench.one(ended(late.notice, sent=False)), Applied)
        assert await bench.store.next_notice() == bench.clock.now() + 19 * MINUTE
        unknown = EndNotice("default", "no", 1, "a1", "asked", 1, sent=True)
        assert await bench.one(unknown) == Refused("unknown", "asked")

    @scenario
    async def test_nobody_is_told_of_what_is_over(self, bench: Bench) -> None:
        """Decided by the last vote, denied, edited, withdrawn, expired, or with the end of its run or generation: its notices go with it."""
        for number, close in enumerate(CLOSINGS):
            head = await asked(bench, f"run-{number}")
            (due,) = await take(bench)
            await close(bench, head)
            assert await bench.store.notices(head.run) == [], close.__name__
            assert await bench.one(ended(due.notice)) == Refused("unknown", "asked")
            assert await bench.store.next_notice() is None

    @scenario
    async def test_nobody_is_told_after_the_deadline(self, bench: Bench) -> None:
        """Whether or not anyone has closed the request: what is due then goes."""
        head = await asked(bench)
        bench.clock.advance(HOUR)
        assert await take(bench) == []
        assert await bench.store.notices(head.run) == []

    @scenario
    async def test_the_longest_due_comes_first(self, bench: Bench) -> None:
        """As many as are asked for, of one tenant or of all."""
        for name, tenant in (("b", "default"), ("a", "default"), ("c", "other")):
            await asked(bench, name, tenant)
            bench.clock.advance(timedelta(seconds=1))
        assert await take(bench, limit=0) == []
        assert [due.notice.run_id for due in await take(bench, "other")] == ["c"]
        assert [due.notice.run_id for due in await take(bench, limit=1)] == ["b"]
        begun = bench.clock.now()
        assert await bench.store.next_notice("nobody") is None
        assert await bench.store.next_notice("other") == begun + MINUTE
        assert [due.notice.run_id for due in await take(bench)] == ["a"]

    @scenario
    async def test_a_restarted_run_asks_anew(self, bench: Bench) -> None:
        """The same id of a request in the next generation is another request, with notices of its own."""
        head = await asked(bench)
        (due,) = await take(bench)
        await bench.apply(ended(due.notice))
        await bench.apply(ending(head))
        assert head.owner is not None
        await bench.apply(starting(generation=2, worker=head.owner))
        again = await bench.head(head.run)
        await bench.apply(following(again, approvals=(reminding(bench),)))
        (due,) = await take(bench)
        assert (due.notice.generation, due.notice.tries) == (2, 1)

    @scenario
    async def test_parking_leaves_them(self, bench: Bench) -> None:
        """A run that waits for the decision is given back; people are told all the same."""
        head = await asked(bench)
        await bench.apply(parking(head))
        assert len(await take(bench)) == 1
