"""What a store promises of messages: accepted ones are kept, each once, and wake who must act."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from outlast.store.change import (
    MAX_UNREAD,
    Answer,
    Applied,
    ApprovalExpire,
    HeadUpdate,
    Message,
    MessageKind,
    MessageState,
    PutMessage,
    Refused,
    RunKey,
    Status,
    Terminate,
    WorkerId,
)
from outlast.testing.conformance.bench import (
    Bench,
    ending,
    following,
    letter,
    parking,
    scenario,
    sending,
    starting,
)

SECOND = timedelta(seconds=1)


class MessageConformance:
    """The inbox."""

    @scenario
    async def test_message_is_kept_once(self, bench: Bench) -> None:
        """The same id again is applied without effect, before and after it was consumed."""
        head = await bench.owned()
        first = await bench.apply(sending(head.run))
        bench.clock.advance(SECOND)
        assert await bench.apply(sending(head.run)) == Applied(first.at)
        image = await bench.store.load(head.run)
        assert image is not None
        (stamped,) = image.messages
        assert (stamped.message, stamped.at, image.head.mail) == (letter(), first.at, True)
        await bench.apply(following(head, consumed=("m1",)))
        await bench.apply(sending(head.run))
        image = await bench.store.load(head.run)
        assert image is not None
        assert (image.messages, image.head.mail) == ((), False)

    @scenario
    async def test_order_of_arrival(self, bench: Bench) -> None:
        """Messages are numbered as they come, consumed ones included."""
        head = await bench.owned()
        for name in ("z", "a", "m"):
            await bench.apply(sending(head.run, name))
        await bench.apply(following(head, consumed=("a",)))
        await bench.apply(sending(head.run, "b"))
        image = await bench.store.load(head.run)
        assert image is not None
        assert [stamped.message.message_id for stamped in image.messages] == ["z", "m", "b"]
        numbers = [stamped.number for stamped in image.messages]
        assert numbers == sorted(set(numbers))
        assert image.head.mail
        assert await bench.store.mail(head.run) == image.messages
        assert await bench.store.mail(RunKey("default", "no")) == ()

    @scenario
    async def test_consuming_twice_is_refused(self, bench: Bench) -> None:
        """What is not there, or not any more, cannot be consumed."""
        head = await bench.owned()
        await bench.apply(sending(head.run))
        assert await bench.one(following(head, consumed=("m1", "m1"))) == Refused("message", "m1")
        assert await bench.one(following(head, consumed=("m2",))) == Refused("message", "m2")
        await bench.apply(following(head, consumed=("m1",)))
        after = await bench.head(head.run)
        assert await bench.one(following(after, consumed=("m1",))) == Refused("message", "m1")

    @scenario
    async def test_owner_hears_of_mail(self, bench: Bench) -> None:
        """A claim names the worker's own runs that have mail, until it is consumed."""
        head = await bench.owned()
        worker = WorkerId("w1")
        assert (await bench.claim(worker)).mail == ()
        await bench.apply(sending(head.run))
        claim = await bench.claim(worker)
        assert (claim.mail, claim.runs) == ((head.run,), ())
        await bench.apply(following(head, consumed=("m1",)))
        assert (await bench.claim(worker)).mail == ()

    @scenario
    async def test_mail_wakes_a_parked_run(self, bench: Bench) -> None:
        """A message makes a parked run claimable before its time, ordered by when it came."""
        head = await bench.owned()
        await bench.apply(parking(head, wake_at=bench.clock.now() + timedelta(hours=1)))
        bench.clock.advance(SECOND)
        await bench.apply(sending(head.run))
        bench.clock.advance(SECOND)
        await bench.start("later")
        taken = (await bench.claim(WorkerId("w1"))).runs
        assert [claimed.head.run.run_id for claimed in taken] == ["run", "later"]

    @scenario
    async def test_unread_mail_offers_at_release(self, bench: Bench) -> None:
        """A run given back with unread mail is offered at once; with `ignore_mail` only for new mail."""
        head = await bench.owned()
        worker = WorkerId("w1")
        await bench.apply(sending(head.run, "old"))
        await bench.apply(parking(head))
        taken = await bench.claim_one(worker)
        await bench.apply(parking(taken, ignore_mail=True))
        assert (await bench.claim(worker)).runs == ()
        assert (await bench.head(head.run)).mail
        await bench.apply(sending(head.run, "old"))
        assert (await bench.claim(worker)).runs == ()
        await bench.apply(sending(head.run, "new"))
        assert (await bench.claim_one(worker)).run == head.run

    @scenario
    async def test_mail_that_came_unseen_offers_the_run(self, bench: Bench) -> None:
        """A message that the owner had not seen when it ignored its mail is not slept through."""
        head = await bench.owned()
        await bench.apply(sending(head.run, "old"))
        image = await bench.store.load(head.run)
        assert image is not None
        await bench.apply(sending(head.run, "new"))
        seen = image.messages[-1].number
        await bench.apply(parking(head, ignore_mail=True, mail_seen=seen))
        taken = await bench.claim_one(WorkerId("w1"))
        await bench.apply(parking(taken, ignore_mail=True, mail_seen=seen + 1))
        assert (await bench.claim(WorkerId("w1"))).runs == ()

    @scenario
    async def test_early_message(self, bench: Bench) -> None:
        """A message may come before its run when it says so, and is there when the run starts."""
        run = RunKey("default", "run")
        assert await bench.one(sending(run)) == Refused("not_found")
        await bench.apply(sending(run, early=True))
        assert await bench.store.head(run) is None
        await bench.start()
        image = await bench.store.load(run)
        assert image is not None
        assert image.head.mail
        assert [stamped.message.message_id for stamped in image.messages] == ["m1"]

    @scenario
    async def test_message_ids_belong_to_a_generation(self, bench: Bench) -> None:
        """A restarted id is a new run: a message is not taken for one that the former run was sent."""
        head = await bench.owned()
        await bench.apply(sending(head.run))
        await bench.apply(ending(head, consumed=("m1",)))
        await bench.start(generation=2, worker=WorkerId("w1"))
        bench.clock.advance(SECOND)
        second = await bench.apply(sending(head.run))
        assert second == Applied(bench.clock.now())
        assert await bench.apply(sending(head.run)) == second
        image = await bench.store.load(head.run)
        assert image is not None
        assert [(one.message, one.at) for one in image.messages] == [(letter(), second.at)]
        assert image.head.mail
        await bench.apply(following(image.head, consumed=("m1",)))
        assert await bench.store.mail(head.run) == ()
        assert await bench.apply(sending(head.run)) == second

    @scenario
    async def test_another_message_under_a_known_id_is_refused(self, bench: Bench) -> None:
        """Two that both have a digest, and not the same, are two; also after the first was consumed. The first one stays."""
        head = await bench.owned()
        first = await bench.apply(PutMessage(head.run, marked("d1")))
        assert await bench.one(PutMessage(head.run, marked("d2"))) == Refused("other", "m1")
        assert [one.message for one in await bench.store.mail(head.run)] == [marked("d1")]
        await bench.apply(following(head, consumed=("m1",)))
        bench.clock.advance(SECOND)
        assert await bench.one(PutMessage(head.run, marked("d2"))) == Refused("other", "m1")
        for digest in ("d1", ""):
            assert await bench.apply(PutMessage(head.run, marked(digest))) == first

    @scenario
    async def test_a_message_without_a_digest_is_known_by_its_id_alone(self, bench: Bench) -> None:
        """Whatever is sent under its id is that message."""
        head = await bench.owned()
        first = await bench.apply(sending(head.run))
        assert await bench.apply(PutMessage(head.run, marked("d2"))) == first
        assert [one.message for one in await bench.store.mail(head.run)] == [letter()]

    @scenario
    async def test_a_start_with_another_message_under_a_known_id_is_refused(
        self, bench: Bench
    ) -> None:
        """Of a message that came before its run the first one counts too: nothing is started."""
        run = RunKey("default", "run")
        await bench.apply(PutMessage(run, marked("d1"), early=True))
        change = starting(messages=(letter("m0"), marked("d2")))
        assert await bench.one(change) == Refused("other", "m1")
        assert await bench.store.head(run) is None
        await bench.apply(starting(messages=(letter("m0"), marked("d1"))))
        mail = await bench.store.mail(run)
        assert [one.message for one in mail] == [marked("d1"), letter("m0")]

    @scenario
    async def test_what_is_meant_for_a_former_run_of_the_id_is_refused(self, bench: Bench) -> None:
        """A message, and an end from outside, that name an incarnation reach that run, and none that follows under its id."""
        head = await bench.owned()
        first = await bench.apply(sending(head.run, incarnation=1))
        await bench.apply(ending(head, consumed=("m1",)))
        assert await bench.one(sending(head.run, "m2", incarnation=1)) == Refused("closed")
        await bench.start(generation=2)
        bench.clock.advance(SECOND)
        assert await bench.one(sending(head.run, "m2", incarnation=1)) == Refused("incarnation")
        refused = await bench.one(Terminate(head.run, "alice", "old", incarnation=1))
        assert refused == Refused("incarnation")
        # What that run has taken it is known to have taken.
        assert await bench.apply(sending(head.run, incarnation=1)) == first
        assert await bench.store.mail(head.run) == ()
        await bench.apply(sending(head.run, incarnation=2))
        await bench.apply(Terminate(head.run, "alice", "enough", incarnation=2))

    @scenario
    async def test_numbers_go_on_in_the_next_generation(self, bench: Bench) -> None:
        """A message is numbered after all that the id was ever sent."""
        head = await bench.owned()
        await bench.apply(sending(head.run))
        await bench.apply(Terminate(head.run, by="alice", reason="enough"))
        await bench.start(generation=2)
        await bench.apply(sending(head.run))
        assert [one.number for one in await bench.store.mail(head.run)] == [2]

    @scenario
    async def test_early_message_belongs_to_the_first_generation(self, bench: Bench) -> None:
        """A message that came before the run is known to its first generation, and to no later one."""
        run = RunKey("default", "run")
        first = await bench.apply(sending(run, early=True))
        bench.clock.advance(SECOND)
        assert await bench.apply(sending(run, early=True)) == first
        head = await bench.owned()
        assert await bench.apply(sending(run)) == first
        await bench.apply(ending(head, consumed=("m1",)))
        assert await bench.apply(sending(run)) == first
        await bench.start(generation=2)
        assert await bench.apply(sending(run)) == Applied(bench.clock.now())

    @scenario
    async def test_closed_run_takes_no_mail(self, bench: Bench) -> None:
        """A closed run refuses messages, but knows those it had."""
        head = await bench.owned()
        first = await bench.apply(sending(head.run))
        await bench.apply(ending(head, consumed=("m1",)))
        assert await bench.one(sending(head.run, "late")) == Refused("closed")
        assert await bench.apply(sending(head.run)) == Applied(first.at)

    @scenario
    async def test_run_does_not_close_over_unread_mail(self, bench: Bench) -> None:
        """An accepted message is consumed before the run ends: ending is refused as long as one is unread."""
        head = await bench.owned()
        await bench.apply(sending(head.run))
        assert await bench.one(ending(head)) == Refused("mail")
        assert await bench.head(head.run) == replace(head, mail=True)
        # Unread mail is named before what the same change says of approvals.
        strange = (ApprovalExpire("no such request"),)
        assert await bench.one(ending(head, approvals=strange)) == Refused("mail")
        await bench.apply(ending(head, consumed=("m1",)))

    @scenario
    async def test_next_generation_starts_without_old_mail(self, bench: Bench) -> None:
        """What a terminated run had not read does not reach the run that re-uses its id."""
        head = await bench.owned()
        await bench.apply(sending(head.run))
        await bench.apply(Terminate(head.run, by="alice", reason="enough"))
        await bench.apply(starting(generation=2))
        image = await bench.store.load(head.run)
        assert image is not None
        assert (image.messages, image.head.mail, image.head.status) == ((), False, Status.READY)

    @scenario
    async def test_answer_is_kept_with_its_update(self, bench: Bench) -> None:
        """An update is answered once, when it was consumed, and its sender reads that by its id."""
        head = await bench.owned()
        assert await bench.store.answer(head.run, "u1") is None
        await bench.apply(PutMessage(head.run, update("u1")))
        await bench.apply(PutMessage(head.run, update("u2")))
        assert await bench.store.answer(head.run, "u1") == MessageState(1, consumed=False)
        early = following(head, answers=(Answer("u1", b"1"),))
        assert await bench.one(early) == Refused("answer", "u1")
        await bench.apply(following(head, consumed=("u1", "u2"), answers=(Answer("u1", b"1"),)))
        assert await bench.store.answer(head.run, "u1") == answered(1, b"1")
        assert await bench.store.answer(head.run, "u2") == MessageState(1, consumed=True)
        after = await bench.head(head.run)
        again = following(after, answers=(Answer("u1", b"2"),))
        assert await bench.one(again) == Refused("answer", "u1")
        twice = following(after, answers=(Answer("u2", b"2"), Answer("u2", b"2")))
        assert await bench.one(twice) == Refused("answer", "u2")
        assert await bench.head(head.run) == after
        await bench.apply(ending(after, answers=(Answer("u2", b""),)))
        assert await bench.store.answer(head.run, "u1") == answered(1, b"1", over=True)
        assert await bench.store.answer(head.run, "u2") == answered(1, b"", over=True)
        await bench.apply(PutMessage(head.run, update("u2")))

    @scenario
    async def test_only_updates_of_the_run_are_answered(self, bench: Bench) -> None:
        """A signal has no answer, nor has what the run was never sent."""
        head = await bench.owned()
        await bench.apply(sending(head.run))
        await bench.start("other")
        await bench.apply(PutMessage(RunKey("default", "other"), update("u1")))
        for message_id in ("m1", "u1"):
            change = following(head, consumed=("m1",), answers=(Answer(message_id, b"1"),))
            assert await bench.one(change) == Refused("answer", message_id)
        assert await bench.store.answer(head.run, "m1") is None
        assert await bench.store.answer(head.run, "u1") is None
        assert await bench.store.answer(RunKey("default", "no"), "u1") is None

    @scenario
    async def test_answer_is_of_the_latest_generation_that_knows_the_update(
        self, bench: Bench
    ) -> None:
        """A restarted run has not answered what the former one was sent, until it is sent that itself."""
        head = await bench.owned()
        await bench.apply(PutMessage(head.run, update("u1")))
        await bench.apply(ending(head, consumed=("u1",), answers=(Answer("u1", b"1"),)))
        await bench.start(generation=2, worker=WorkerId("w1"))
        assert await bench.store.answer(head.run, "u1") == answered(1, b"1", over=True)
        await bench.apply(PutMessage(head.run, update("u1")))
        assert await bench.store.answer(head.run, "u1") == MessageState(2, consumed=False)

    @scenario
    async def test_update_of_a_run_that_is_over(self, bench: Bench) -> None:
        """Nobody will answer what was left by a termination, before and after the id is used again; what comes early is not over."""
        run = RunKey("default", "run")
        await bench.apply(PutMessage(run, update("u0"), early=True))
        assert await bench.store.answer(run, "u0") == MessageState(1, consumed=False)
        await bench.start()
        await bench.apply(PutMessage(run, update("u1")))
        await bench.apply(Terminate(run, by="alice", reason="enough"))
        unanswered = MessageState(1, consumed=False, over=True)
        assert await bench.store.answer(run, "u1") == unanswered
        await bench.start(generation=2)
        assert await bench.store.answer(run, "u1") == unanswered
        assert await bench.store.answer(run, "u0") == unanswered

    @scenario
    async def test_start_with_messages(self, bench: Bench) -> None:
        """Messages of a start are in the inbox from the beginning, after those that came before it, each once."""
        run = RunKey("default", "run")
        first = await bench.apply(sending(run, "early", early=True))
        bench.clock.advance(SECOND)
        messages = (letter("early"), letter("m1"), update("u1"))
        worker = await bench.worker()
        started = await bench.apply(starting(worker=worker, messages=messages))
        mail = await bench.store.mail(run)
        assert [(one.message.message_id, one.at, one.number) for one in mail] == [
            ("early", first.at, 1),
            ("m1", started.at, 2),
            ("u1", started.at, 3),
        ]
        assert (await bench.head(run)).mail
        assert await bench.apply(sending(run)) == Applied(started.at)
        assert await bench.store.answer(run, "u1") == MessageState(1, consumed=False)

    @scenario
    async def test_start_that_is_not_applied_brings_no_messages(self, bench: Bench) -> None:
        """Not beside an open run, and not with a message that no store can keep."""
        run = await bench.start()
        await bench.one(starting(messages=(letter(),)))
        assert await bench.store.mail(run) == ()
        unkept = starting("other", messages=(letter(), letter("a\0b")))
        assert await bench.one(unkept) == Refused("unstorable", "messages[1].message_id")
        assert await bench.store.head(unkept.run) is None

    @scenario
    async def test_restart_with_messages(self, bench: Bench) -> None:
        """They belong to the new generation; what the former one was sent is no obstacle."""
        head = await bench.owned()
        await bench.apply(sending(head.run))
        await bench.apply(ending(head, consumed=("m1",)))
        await bench.start(generation=2, messages=(letter(),))
        assert [one.message for one in await bench.store.mail(head.run)] == [letter()]

    @scenario
    async def test_full_inbox(self, bench: Bench) -> None:
        """A full inbox refuses signals and updates, knows those that it has, and takes what ends or settles a run."""
        many = tuple(letter(f"m{number}") for number in range(MAX_UNREAD))
        worker = await bench.worker()
        run = await bench.start(worker=worker, messages=many)
        head = await bench.head(run)
        assert await bench.one(sending(run, "more")) == Refused("full", "more")
        assert await bench.one(PutMessage(run, update("u1"))) == Refused("full", "u1")
        await bench.apply(sending(run, "m7"))
        for kind in MessageKind:
            if kind not in (MessageKind.SIGNAL, MessageKind.UPDATE):
                await bench.apply(PutMessage(run, Message(kind, kind, "", "alice", b"{}")))
        await bench.apply(following(head, consumed=("m0",)))
        assert await bench.one(sending(run, "more")) == Refused("full", "more")
        others = tuple(
            kind for kind in MessageKind if kind not in (MessageKind.SIGNAL, MessageKind.UPDATE)
        )
        await bench.apply(following(await bench.head(run), consumed=others))
        await bench.apply(sending(run, "more"))
        assert await bench.one(sending(run, "yet more")) == Refused("full", "yet more")
        await bench.start("other")
        await bench.apply(sending(RunKey("default", "other")))

    @scenario
    async def test_ending_run_takes_no_mail(self, bench: Bench) -> None:
        """A run that is about to end refuses signals and updates, knows those that it has, and takes what operators say."""
        head = await bench.owned()
        await bench.apply(sending(head.run))
        shut = HeadUpdate(Status.RUNNING, ending=True)
        await bench.apply(following(head, head=shut))
        assert await bench.one(sending(head.run, "m2")) == Refused("closed")
        assert await bench.one(PutMessage(head.run, update("u1"))) == Refused("closed")
        await bench.apply(sending(head.run))
        cancel = Message("c1", MessageKind.CANCEL, "", "alice", b"{}")
        await bench.apply(PutMessage(head.run, cancel))
        await bench.apply(following(await bench.head(head.run), consumed=("m1", "c1")))
        assert await bench.one(sending(head.run, "m2")) == Refused("closed")
        await bench.apply(parking(await bench.head(head.run)))
        await bench.apply(sending(head.run, "m2"))

    @scenario
    async def test_next_generation_takes_mail_again(self, bench: Bench) -> None:
        """What was ending is not the run that re-uses its id."""
        head = await bench.owned()
        await bench.apply(following(head, head=HeadUpdate(Status.RUNNING, ending=True)))
        await bench.apply(Terminate(head.run, by="alice", reason="enough"))
        await bench.start(generation=2)
        await bench.apply(sending(head.run))


def marked(digest: str) -> Message:
    """Return a signal that says what it is."""
    return replace(letter(), digest=digest)


def update(message_id: str) -> Message:
    """Return an update."""
    return Message(message_id, MessageKind.UPDATE, "go", "alice", b'"hi"')


def answered(generation: int, answer: bytes, *, over: bool = False) -> MessageState:
    """Return the state of an update that has its answer."""
    return MessageState(generation, consumed=True, over=over, answered=True, answer=answer)
