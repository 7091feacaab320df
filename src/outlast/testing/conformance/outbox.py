"""What a store promises of runs that deal with other runs: nothing they send is lost, and the end of one is told to those who asked."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from outlast.store.change import (
    CHILD_ABANDON,
    CHILD_CANCEL,
    CHILD_TERMINATE,
    WATCHED,
    Applied,
    ClearOutbox,
    DropWatch,
    Message,
    MessageKind,
    OperationDrop,
    OperationPut,
    OutboxItem,
    OutboxKind,
    PutMessage,
    PutWatch,
    Refused,
    RunChange,
    RunHead,
    RunKey,
    StartRun,
    Status,
    Terminate,
    Watch,
    WorkerId,
    origin_of,
)
from outlast.store.protocol import RELAY_AFTER
from outlast.testing.conformance.bench import (
    Bench,
    ending,
    following,
    letter,
    parking,
    row,
    scenario,
    starting,
)

SECOND = timedelta(seconds=1)
OTHER = RunKey("default", "other")
WATCHER = RunKey("default", "watcher")
WATCH = Watch(WATCHER, 3, "r:7")
CHILDREN = (
    OperationPut("r:1", CHILD_TERMINATE, "one"),
    OperationPut("r:2", CHILD_CANCEL, "two"),
    OperationPut("r:3", CHILD_ABANDON, "three"),
    OperationPut("r:4", WATCHED, "four"),
    OperationPut("r:5", "step", "five", 1),
)


def item(name: str, **fields: Any) -> OutboxItem:
    """Return a signal to another run."""
    given: dict[str, Any] = {"body": b"1", "sender": "run", "operation": "r:1", **fields}
    return OutboxItem(OTHER, OutboxKind.SIGNAL, f"id/{name}", name, **given)


def answer(name: str = "sent/1~r:1") -> Message:
    """Return what a run is told of what it sent."""
    return Message(name, MessageKind.OUTCOME, "r:1", "relay", b"{}")


class OutboxConformance:
    """The outbox, and who watches whom."""

    @scenario
    async def test_outbox_keeps_order_until_cleared(self, bench: Bench) -> None:
        """Items wait for the relay as they were given, oldest first, numbered by the store; cleared ones go."""
        head = await bench.owned()
        items = [item(name, generation=2, target_generation=4, origin="o~1~r:2") for name in "abc"]
        assert (await bench.apply(following(head, outbox=tuple(items)))).outbox
        kept = [replace(one, number=place) for place, one in enumerate(items, 1)]
        assert await bench.store.outbox(2) == [(head.run, kept[0]), (head.run, kept[1])]
        await bench.apply(ClearOutbox(head.run, (1, 3, 9)))
        assert await bench.store.outbox(10) == [(head.run, kept[1])]
        assert await bench.store.outbox(10, run=OTHER) == []
        assert await bench.store.outbox(10, run=head.run) == [(head.run, kept[1])]

    @scenario
    async def test_a_number_is_used_once(self, bench: Bench) -> None:
        """Whoever holds an old list of items can clear none that came later, in this generation or the next."""
        head = await bench.owned()
        await bench.apply(following(head, outbox=(item("a"),)))
        await bench.apply(ClearOutbox(head.run, (1,)))
        await bench.apply(following(await bench.head(head.run), outbox=(item("b"),)))
        await bench.apply(ending(await bench.head(head.run), operations=CHILDREN[:1]))
        numbers = [one.number for _, one in await bench.store.outbox(10)]
        await bench.start(generation=2, worker=WorkerId("w1"))
        await bench.apply(following(await bench.head(head.run), outbox=(item("c"),)))
        assert numbers == [2, 3]
        assert [one.number for _, one in await bench.store.outbox(10)] == [2, 3, 4]

    @scenario
    async def test_a_change_sent_again_sends_nothing_again(self, bench: Bench) -> None:
        """After a lost answer the same change is recognised, with its outbox."""
        change = following(await bench.owned(), outbox=(item("a"),))
        first = await bench.apply(change)
        assert await bench.apply(change) == Applied(first.at)
        assert len(await bench.store.outbox(10)) == 1

    @scenario
    async def test_what_is_left_is_anybodys_after_a_while(self, bench: Bench) -> None:
        """A claim says when the oldest item is to be looked at, and the outbox lists what has waited so long."""
        worker = WorkerId("w1")
        head = await bench.owned()
        assert (await bench.claim(worker)).next_relay is None
        written = await bench.apply(following(head, outbox=(item("a"),)))
        bench.clock.advance(SECOND)
        await bench.apply(following(await bench.head(head.run), outbox=(item("b"),)))
        assert (await bench.claim(worker)).next_relay == written.at + RELAY_AFTER
        assert await bench.store.outbox(10, age=RELAY_AFTER) == []
        bench.clock.advance(SECOND)
        assert [one.name for _, one in await bench.store.outbox(10, age=RELAY_AFTER)] == ["a"]
        await bench.apply(ClearOutbox(head.run, (1, 2)))
        assert (await bench.claim(worker)).next_relay is None

    @scenario
    async def test_an_item_from_the_future_is_anybodys_now(self, bench: Bench) -> None:
        """The wall clock was set back since: nothing waits until it has come so far again."""
        head = await bench.owned()
        await bench.apply(following(head, outbox=(item("a"),)))
        bench.clock.set_wall(bench.clock.now() - timedelta(days=1))
        assert (await bench.claim(WorkerId("w1"))).next_relay == bench.clock.now()
        assert len(await bench.store.outbox(10, age=RELAY_AFTER)) == 1
        # One sender's items keep their order, whatever the clock does.
        await bench.apply(following(await bench.head(head.run), outbox=(item("b"),)))
        assert [one.name for _, one in await bench.store.outbox(10)] == ["a", "b"]

    @scenario
    async def test_clearing_tells_the_sender(self, bench: Bench) -> None:
        """The answer is in the inbox when the item is gone; told twice it is one answer."""
        head = await bench.owned()
        await bench.apply(following(head, outbox=(item("a"),)))
        await bench.apply(parking(await bench.head(head.run)))
        change = ClearOutbox(head.run, (1,), (answer(),), head.generation)
        await bench.apply(change)
        await bench.apply(change)
        taken = await bench.claim_one(WorkerId("w1"))
        assert [one.message for one in await bench.store.mail(head.run)] == [answer()]
        await bench.apply(following(taken, consumed=(answer().message_id,)))
        await bench.apply(change)
        assert await bench.store.mail(head.run) == ()

    @scenario
    async def test_nobody_is_told_who_does_not_wait(self, bench: Bench) -> None:
        """An answer for a run that has ended, or for another generation of it, is dropped; the item is cleared all the same."""
        head = await bench.owned()
        await bench.apply(ending(head, outbox=(item("a"),)))
        await bench.apply(ClearOutbox(head.run, (1,), (answer(),), 1))
        assert await bench.store.outbox(10) == []
        await bench.start(generation=2, worker=WorkerId("w1"))
        await bench.apply(ClearOutbox(head.run, (1,), (answer(),), 1))
        await bench.apply(ClearOutbox(OTHER, (1,), (answer(),), 1))
        assert await bench.store.mail(head.run) == ()

    @scenario
    async def test_a_message_for_another_run_of_the_id_is_refused(self, bench: Bench) -> None:
        """A generation or an origin that is named must be the one that is there; known messages are known all the same."""
        origin = origin_of("parent", 1, "r:1")
        run = await bench.start(origin=origin, worker=await bench.worker())
        assert (await bench.head(run)).origin == origin
        fits = PutMessage(run, letter("m1"), generation=1, origin=origin)
        await bench.apply(fits)
        for generation, other, refusal in ((2, origin, "generation"), (0, "p~1~r:1", "origin")):
            stranger = PutMessage(run, letter("m2"), generation=generation, origin=other)
            assert await bench.one(stranger) == Refused(refusal)
        await bench.apply(ending(await bench.head(run), consumed=("m1",)))
        await bench.apply(fits)
        await bench.start(generation=2)
        assert (await bench.head(run)).origin == ""
        assert await bench.one(fits) == Refused("generation")
        assert await bench.one(replace(fits, generation=0)) == Refused("origin")

    @scenario
    async def test_a_stranger_is_not_terminated(self, bench: Bench) -> None:
        """A run that another operation, or nobody, has started is not ended for its parent's sake."""
        run = await bench.start()
        parting = Terminate(run, "parent", "its parent has ended", origin="parent~1~r:1")
        assert await bench.one(parting) == Refused("origin")
        child = await bench.start("child", origin="parent~1~r:1")
        await bench.apply(replace(parting, run=child))
        assert (await bench.head(child)).status is Status.TERMINATED
        assert (await bench.head(run)).status is Status.READY

    @scenario
    async def test_the_end_is_told_to_each_watcher(self, bench: Bench) -> None:
        """A watch is put at the start or later, once; at the end each has an item, with the status, and the watches are gone."""
        worker = await bench.worker()
        run = await bench.start(worker=worker, watch=WATCH)
        second = replace(WATCH, watcher=OTHER)
        for watch in (second, WATCH, second, replace(WATCH, operation="r:8")):
            await bench.apply(PutWatch(run, watch))
        await bench.apply(DropWatch(run, replace(WATCH, operation="r:8")))
        assert (await bench.apply(ending(await bench.head(run), Status.FAILED))).outbox
        found = await bench.store.outbox(10)
        assert [(sender, *_told(one)) for sender, one in found] == [
            (run, OTHER, OutboxKind.ENDED, "end/3~r:7", "failed", 1, "r:7", 3),
            (run, WATCHER, OutboxKind.ENDED, "end/3~r:7", "failed", 1, "r:7", 3),
        ]
        assert {one.reason for _, one in found} == {""}
        await bench.apply(ClearOutbox(run, (1, 2)))
        await bench.start(generation=2, worker=worker)
        assert not (await bench.apply(ending(await bench.head(run)))).outbox
        assert await bench.store.outbox(10) == []

    @scenario
    async def test_watchers_hear_of_a_termination(self, bench: Bench) -> None:
        """The store itself tells them: no owner is there to do it."""
        run = await bench.start(watch=WATCH)
        assert (await bench.apply(Terminate(run, "root", "why"))).outbox
        ((_, one),) = await bench.store.outbox(10)
        assert _told(one) == (WATCHER, OutboxKind.ENDED, "end/3~r:7", "terminated", 1, "r:7", 3)
        assert one.reason == "why"

    @scenario
    async def test_only_an_open_run_can_be_watched(self, bench: Bench) -> None:
        """One that is not there, or has ended, has to be asked in another way."""
        assert await bench.one(PutWatch(OTHER, WATCH)) == Refused("not_found")
        head = await bench.owned()
        await bench.apply(ending(head))
        assert await bench.one(PutWatch(head.run, WATCH)) == Refused("closed")
        await bench.apply(DropWatch(OTHER, WATCH))

    @scenario
    async def test_children_are_told_of_the_end(self, bench: Bench) -> None:
        """Those that are still open, each as its start said; what else is open says nothing."""
        head = await bench.owned()
        await bench.apply(following(head, operations=CHILDREN))
        await bench.apply(ending(await bench.head(head.run)))
        found = [one for _, one in await bench.store.outbox(10)]
        assert [(one.target.run_id, one.kind, one.operation, one.origin) for one in found] == [
            ("one", OutboxKind.TERMINATE, "", "run~1~r:1"),
            ("two", OutboxKind.CANCEL, "", "run~1~r:2"),
            ("four", OutboxKind.UNWATCH, "r:4", ""),
        ]
        assert [one.message_id for one in found] == ["close/run~1~r:1", "close/run~1~r:2", ""]

    @scenario
    async def test_children_are_told_of_a_termination(self, bench: Bench) -> None:
        """The same, in the transaction that terminates; a child that has ended by then is left alone."""
        head = await bench.owned()
        await bench.apply(following(head, operations=CHILDREN[:2]))
        await bench.apply(_dropping(await bench.head(head.run), "r:1"))
        await bench.apply(Terminate(head.run, "root", "why"))
        found = [one for _, one in await bench.store.outbox(10)]
        assert [(one.target.run_id, one.kind) for one in found] == [("two", OutboxKind.CANCEL)]

    @scenario
    async def test_a_fenced_owner_sends_nothing(self, bench: Bench) -> None:
        """What is refused or fenced leaves nothing in the outbox, and no watch."""
        head = await bench.owned()
        await bench.apply(Terminate(head.run, "root", "why"))
        await bench.one(following(head, outbox=(item("a"),)))
        taken: StartRun = starting(watch=WATCH, generation=4)
        await bench.one(taken)
        await bench.start(generation=2, worker=WorkerId("w1"))
        await bench.apply(ending(await bench.head(head.run)))
        assert await bench.store.outbox(10) == []

    @scenario
    async def test_the_last_entry_says_how_a_generation_ended(self, bench: Bench) -> None:
        """Of the one that is asked for, also when the id was used again."""
        head = await bench.owned()
        end: datetime = (await bench.apply(ending(head))).at
        await bench.start(generation=2)
        found = await bench.store.last_entry(head.run, 1)
        assert found is not None
        assert (found.row, found.at) == (row(1), end)
        assert await bench.store.last_entry(head.run, 3) is None
        assert await bench.store.last_entry(OTHER, 1) is None


def _told(one: OutboxItem) -> tuple[Any, ...]:
    return (
        one.target,
        one.kind,
        one.message_id,
        one.name,
        one.generation,
        one.operation,
        one.target_generation,
    )


def _dropping(head: RunHead, operation: str) -> RunChange:

    return following(head, operations=(OperationDrop(operation),))
