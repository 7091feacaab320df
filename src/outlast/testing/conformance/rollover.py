"""What a store promises of roll-overs: a new generation in one commit, with the same inbox, and nothing of what was open."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from outlast.journal.entry import EntryRow
from outlast.store.change import (
    Answer,
    Applied,
    Conflict,
    Decide,
    HeadUpdate,
    Message,
    MessageKind,
    OperationPut,
    PutMessage,
    Refused,
    RunChange,
    RunHead,
    RunKey,
    Status,
    Terminate,
    WorkerId,
)
from outlast.store.condition import HISTORY, KNOWN_MESSAGES
from outlast.store.protocol import GenerationRow
from outlast.testing.conformance.bench import (
    Bench,
    asking,
    ending,
    following,
    letter,
    parking,
    row,
    scenario,
    sending,
    starting,
)

SECOND = timedelta(seconds=1)
READY = HeadUpdate(Status.READY, release=True)


def begins(workflow: str = "fix", more: int = 0) -> tuple[EntryRow, ...]:
    """Return what a generation begins with."""
    rest = (row(seq, kind="message_received") for seq in range(1, more + 1))
    return (replace(row(0, b"{}", kind="started"), name=workflow), *rest)


def rolling(head: RunHead, /, *, workflow: str = "fix", more: int = 0, **fields: Any) -> RunChange:
    """Return the end of a generation that is the beginning of the next one."""
    return following(head, head=READY, next=begins(workflow, more), **fields)


def updating(run: RunKey, message_id: str) -> PutMessage:
    """Return the putting of an update."""
    return PutMessage(run, replace(letter(message_id), kind=MessageKind.UPDATE))


class RollOverConformance:
    """Generations of one run."""

    @scenario
    async def test_the_next_generation_begins_in_the_same_commit(self, bench: Bench) -> None:
        """The run is ready for whoever takes it, one generation on; what it was started as stays."""
        head = await bench.owned()
        bench.clock.advance(SECOND)
        change = rolling(head, workflow="other", more=2)
        applied = await bench.apply(change)
        after = await bench.head(head.run)
        assert (after.generation, after.incarnation, after.next_seq, after.workflow) == (
            2,
            1,
            3,
            "other",
        )
        assert (after.status, after.reason, after.owner, after.epoch) == (Status.READY, "", None, 1)
        assert (after.fingerprint, after.created_at) == (head.fingerprint, head.created_at)
        assert (after.version, after.digest, after.changed_at) == (1, change.digest, applied.at)
        now = await bench.store.journal(head.run)
        assert [(one.row, one.at) for one in now] == [(one, applied.at) for one in change.next]
        former = await bench.store.journal(head.run, generation=1)
        assert [one.row.seq for one in former] == [0, 1]
        assert (await bench.claim(await bench.worker("w2"))).runs == ()
        claim = await bench.store.claim(WorkerId("w2"), frozenset({"other"}), 5)
        (claimed,) = claim.runs
        assert (claimed.head.epoch, claimed.head.generation) == (2, 2)
        await bench.apply(following(claimed.head))
        assert len(await bench.store.journal(head.run, generation=2)) == 4

    @scenario
    async def test_a_roll_over_sent_again_is_recognised(self, bench: Bench) -> None:
        """As any owned change is: it is written once, also when another worker holds the run by then."""
        head = await bench.owned()
        change = rolling(head)
        first = await bench.apply(change)
        bench.clock.advance(SECOND)
        assert (await bench.apply(change)).at == first.at
        await bench.claim_one(WorkerId("w1"))
        assert (await bench.apply(change)).at == first.at
        after = await bench.head(head.run)
        assert (after.generation, after.next_seq, after.epoch) == (2, 1, 2)

    @scenario
    async def test_what_is_unread_is_for_the_next_generation(self, bench: Bench) -> None:
        """The inbox does not move: order, numbers and times stay, the run is offered, and messages go on being numbered."""
        head = await bench.owned()
        for name in ("a", "b", "c"):
            await bench.apply(sending(head.run, name))
        before = await bench.store.mail(head.run)
        await bench.apply(rolling(head, consumed=("b",)))
        assert await bench.store.mail(head.run) == (before[0], before[2])
        assert (await bench.head(head.run)).mail
        await bench.apply(sending(head.run, "d"))
        image = await bench.store.load(head.run)
        assert image is not None
        assert [(one.message.message_id, one.number) for one in image.messages] == [
            ("a", 1),
            ("c", 3),
            ("d", 4),
        ]
        taken = await bench.claim_one(WorkerId("w1"))
        assert (await bench.claim(WorkerId("w1"))).mail == (head.run,)
        await bench.apply(following(taken, consumed=("a", "c", "d")))
        assert await bench.store.mail(head.run) == ()
        assert not (await bench.head(head.run)).mail

    @scenario
    async def test_a_roll_over_is_the_same_run_to_who_means_it(self, bench: Bench) -> None:
        """What names the incarnation reaches each of its generations."""
        head = await bench.owned()
        await bench.apply(rolling(head))
        await bench.apply(sending(head.run, incarnation=1))
        assert await bench.one(sending(head.run, "m2", incarnation=2)) == Refused("incarnation")
        await bench.apply(Terminate(head.run, "alice", "enough", incarnation=1))

    @scenario
    async def test_a_message_is_known_across_roll_overs(self, bench: Bench) -> None:
        """One that was consumed in a former generation, and is sent again, is applied without effect."""
        head = await bench.owned()
        first = await bench.apply(sending(head.run))
        await bench.apply(following(head, consumed=("m1",)))
        for _ in range(3):
            await bench.apply(rolling(await bench.head(head.run)))
            bench.clock.advance(SECOND)
            assert await bench.apply(sending(head.run)) == Applied(first.at)
            assert await bench.store.mail(head.run) == ()
            assert await bench.one(following(head, consumed=("m1",))) != Applied(first.at)
            await bench.claim_one(WorkerId("w1"))

    @scenario
    async def test_the_newest_messages_are_known(self, bench: Bench) -> None:
        """Ids that are older than the last `KNOWN_MESSAGES` are forgotten at a roll-over; what is unread stays, however old."""
        head = await bench.owned()
        names = [f"m{number}" for number in range(KNOWN_MESSAGES + 3)]
        half = KNOWN_MESSAGES // 2
        await bench.store.commit([sending(head.run, name) for name in names[:half]])
        await bench.apply(following(head, consumed=tuple(names[1:half])))
        await bench.store.commit([sending(head.run, name) for name in names[half:]])
        await bench.apply(rolling(await bench.head(head.run), consumed=tuple(names[half:])))
        assert [one.number for one in await bench.store.mail(head.run)] == [1]
        bench.clock.advance(SECOND)
        now = bench.clock.now()
        assert [
            (await bench.apply(sending(head.run, names[place]))).at == now for place in (0, 1, 2, 3)
        ] == [
            False,
            True,
            True,
            False,
        ]
        assert [one.number for one in await bench.store.mail(head.run)] == [
            1,
            KNOWN_MESSAGES + 4,
            KNOWN_MESSAGES + 5,
        ]

    @scenario
    async def test_update_that_waits_for_its_answer_is_known(self, bench: Bench) -> None:
        """One that was taken in is not forgotten before it is answered, however many messages came after it."""
        head = await bench.owned()
        kept, told = (updating(head.run, name) for name in ("kept", "told"))
        await bench.store.commit([kept, told])
        answered = (Answer("told", b"{}"),)
        await bench.apply(following(head, consumed=("kept", "told"), answers=answered))
        names = [f"m{number}" for number in range(KNOWN_MESSAGES // 2)]
        for part in "ab":
            mail = tuple(f"{name}{part}" for name in names)
            await bench.store.commit([sending(head.run, name) for name in mail])
            await bench.apply(following(await bench.head(head.run), consumed=mail))
        await bench.apply(rolling(await bench.head(head.run)))
        assert await bench.store.answer(head.run, "told") is None
        taken = await bench.claim_one(WorkerId("w1"))
        await bench.apply(following(taken, answers=(Answer("kept", b"1"),)))
        state = await bench.store.answer(head.run, "kept")
        assert state is not None
        assert (state.answered, state.answer) == (True, b"1")

    @scenario
    async def test_what_a_former_use_of_the_id_never_read_is_forgotten(self, bench: Bench) -> None:
        """A restart leaves the ids of unread messages, and a roll-over far behind them takes those too; none is the new run's."""
        head = await bench.owned()
        await bench.store.commit([sending(head.run), updating(head.run, "u")])
        await bench.apply(Terminate(head.run, "alice", "enough"))
        assert len(await bench.store.mail(head.run)) == 2
        await bench.apply(starting(generation=2, worker=WorkerId("w1")))
        assert await bench.store.mail(head.run) == ()
        state = await bench.store.answer(head.run, "u")
        assert state is not None
        assert (state.consumed, state.over) == (False, True)
        names = tuple(f"n{number}" for number in range(KNOWN_MESSAGES))
        await bench.store.commit([sending(head.run, name) for name in names])
        await bench.apply(rolling(await bench.head(head.run), consumed=names))
        assert await bench.store.answer(head.run, "u") is None

    @scenario
    async def test_what_is_open_goes(self, bench: Bench) -> None:
        """Rows of operations are dropped; a pending request is withdrawn, and its decision comes too late."""
        head = await bench.owned()
        await bench.apply(
            following(
                head,
                operations=(OperationPut("r:1", "step", "plan", 1),),
                approvals=(asking(bench.clock),),
            )
        )
        await bench.apply(rolling(await bench.head(head.run)))
        image = await bench.store.load(head.run)
        assert image is not None
        assert (image.operations, image.approvals) == ((), ())
        (kept,) = await bench.store.approvals("default", pending=False)
        assert (kept.put.approval_id, kept.state) == ("a1", "withdrawn")
        yes = Message("d1", MessageKind.DECISION, "a1", "bob", b"{}")
        assert await bench.one(Decide(head.run, "a1", "s", True, "bob", yes)) == Refused(
            "unknown", "a1"
        )
        taken = await bench.claim_one(WorkerId("w1"))
        await bench.apply(following(taken, approvals=(asking(bench.clock),)))
        await bench.apply(Decide(head.run, "a1", "s", True, "bob", yes))
        assert [one.message.message_id for one in await bench.store.mail(head.run)] == ["d1"]

    @scenario
    async def test_a_roll_over_gives_the_run_back(self, bench: Bench) -> None:
        """One that does not, or whose new journal does not begin with a named first entry, is refused as a whole."""
        head = await bench.owned()
        whole = rolling(head)
        first, second = begins(more=1)
        wrong = [
            replace(whole, head=None),
            replace(whole, head=HeadUpdate(Status.READY)),
            replace(whole, head=HeadUpdate(Status.COMPLETED, release=True)),
            replace(whole, next=(second, first)),
            replace(whole, next=(second,)),
            replace(whole, next=(replace(first, name=""),)),
        ]
        for change in wrong:
            assert await bench.one(change) == Refused("next")
        spoilt = replace(whole, next=(first, replace(second, name="a\0b")))
        assert await bench.one(spoilt) == Refused("unstorable", "next[1].name")
        assert await bench.head(head.run) == head
        assert len(await bench.store.journal(head.run)) == 1

    @scenario
    async def test_builds_that_did_not_fit_may_take_the_next_generation(self, bench: Bench) -> None:
        """A roll-over is progress: neither unfit builds nor lost owners are remembered."""
        head = await bench.owned()
        await bench.apply(parking(head, status=Status.BLOCKED, unfit_build="b1"))
        other = await bench.worker("w2", build="b2")
        taken = await bench.claim_one(other)
        await bench.apply(rolling(taken))
        assert (await bench.claim_one(WorkerId("w1"))).lapses == 0

    @scenario
    async def test_a_restart_after_roll_overs_is_a_new_run(self, bench: Bench) -> None:
        """Its generation follows the last one, its inbox is its own, and it knows no former message."""
        head = await bench.owned()
        await bench.apply(sending(head.run))
        await bench.apply(rolling(head, consumed=("m1",)))
        assert isinstance(await bench.one(starting(generation=3)), Conflict)
        taken = await bench.claim_one(WorkerId("w1"))
        await bench.apply(ending(taken))
        assert await bench.one(sending(head.run, "m2")) == Refused("closed")
        assert isinstance(await bench.one(starting(generation=2)), Conflict)
        await bench.apply(starting(generation=3))
        again = await bench.head(head.run)
        assert (again.generation, again.incarnation, again.version) == (3, 3, 0)
        bench.clock.advance(SECOND)
        assert (await bench.apply(sending(head.run))).at == bench.clock.now()
        assert [one.number for one in await bench.store.mail(head.run)] == [2]

    @scenario
    async def test_a_rolled_over_run_is_terminated_as_any_other(self, bench: Bench) -> None:
        """The generation is closed; its journal and those before it stay."""
        head = await bench.owned()
        await bench.apply(rolling(head))
        await bench.apply(Terminate(head.run, "root", "enough"))
        after = await bench.head(head.run)
        assert (after.generation, after.status, after.epoch) == (2, Status.TERMINATED, 2)
        assert len(await bench.store.journal(head.run, generation=1)) == 2

    @scenario
    async def test_generations_are_listed_newest_first(self, bench: Bench) -> None:
        """Each with its length, the kind of its last entry, and when that came."""
        head = await bench.owned()
        began = bench.clock.now()
        bench.clock.advance(SECOND)
        await bench.apply(rolling(head, more=1))
        listed = await bench.store.generations(head.run)
        assert listed == (
            GenerationRow(2, 2, "message_received", began + SECOND),
            GenerationRow(1, 2, "step_completed", began + SECOND),
        )
        assert await bench.store.generations(head.run, limit=1) == listed[:1]
        assert await bench.store.generations(RunKey("default", "no")) == ()

    @scenario
    async def test_a_run_at_its_limit_is_offered_for_an_operators_word(self, bench: Bench) -> None:
        """Blocked for its history, it takes no other message for a reason to be taken up, before it is given back or after."""
        head = await bench.owned()
        worker = WorkerId("w1")
        await bench.apply(sending(head.run, "before"))
        await bench.apply(parking(head, status=Status.BLOCKED, reason=HISTORY))
        await bench.apply(sending(head.run, "after"))
        assert (await bench.claim(worker)).runs == ()
        assert (await bench.head(head.run)).mail
        for kind in (MessageKind.CANCEL, MessageKind.RESOLUTION, MessageKind.ACCEPT):
            await bench.apply(PutMessage(head.run, replace(letter(str(kind)), kind=kind)))
            taken = await bench.claim_one(worker)
            await bench.apply(PutMessage(head.run, replace(letter(f"{kind}/2"), kind=kind)))
            await bench.apply(parking(taken, status=Status.BLOCKED, reason=HISTORY))
            taken = await bench.claim_one(worker)
            unread = tuple(one.message.message_id for one in await bench.store.mail(head.run))
            known = ("before", "after")
            consumed = tuple(one for one in unread if one not in known)
            await bench.apply(
                following(
                    taken,
                    consumed=consumed,
                    head=HeadUpdate(Status.BLOCKED, reason=HISTORY, release=True),
                )
            )
            assert (await bench.claim(worker)).runs == ()
