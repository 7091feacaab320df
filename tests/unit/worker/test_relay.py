"""The relay: what is in an outbox is done once, in order, whoever does it and however often it is tried."""

# ruff: noqa: D103 - the workflows of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

import outlast
from outlast.effects.intent import Resolution
from outlast.errors import StoreUnavailableError
from outlast.journal.entry import (
    Completed,
    EntryRow,
    OperationId,
    Parent,
    Started,
    Taken,
    from_row,
    to_row,
)
from outlast.store.change import (
    Applied,
    Change,
    ClearOutbox,
    OutboxItem,
    OutboxKind,
    PutMessage,
    Refused,
    RunHead,
    RunKey,
    Status,
    Terminate,
    Verdict,
    Watch,
    WorkerId,
    WorkerRow,
    digest_of,
    origin_of,
)
from outlast.store.memory import MemoryStore
from outlast.store.protocol import RELAY_AFTER
from outlast.testing import SeededRandom, Simulation
from outlast.testing.conformance import ManualClock
from outlast.testing.conformance.bench import ending, following, row, starting
from outlast.worker.outbox import ChildBody
from outlast.worker.relay import BATCH, SWEEP_SECONDS, Birth, Relay
from outlast.worker.worker import WorkerOptions

SENDER, TARGET = RunKey("default", "sender"), RunKey("default", "target")
W = WorkerId("w1")
STARTS = b'{"arguments":{},"tells_start":true}'


def item(kind: OutboxKind, number: int = 1, **fields: Any) -> OutboxItem:
    """Return what operation `r:<number>` of the sender asks of the target."""
    operation = f"r:{number}"
    given: dict[str, Any] = {
        "target": TARGET,
        "message_id": f"run/sender~1~{operation}",
        "name": "go",
        "sender": "sender",
        "operation": operation,
        "body": b'"x"',
        **fields,
    }
    return OutboxItem(kind=kind, **given)


def birth_of_child(number: int = 1, **fields: Any) -> OutboxItem:
    origin = origin_of("sender", 1, f"r:{number}")
    return item(
        OutboxKind.START,
        number,
        **{"name": "child", "sender": "ann", "body": STARTS, "origin": origin, **fields},
    )


class World:
    """A memory store with a sender in the hands of a worker, and relays that reach it through `before`."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.before: Callable[[Change], Awaitable[Verdict | None]] = self._nothing
        self.changes: list[Change] = []

    async def begin(self) -> None:
        """Let the sender begin."""
        await self.store.register(WorkerRow(W, "host", 1, "b", ("fix",), timedelta(hours=1)))
        await self.commit(starting("sender", worker=W))

    async def commit(self, change: Change) -> Verdict:
        """Write what must be applied."""
        (verdict,) = await self.store.commit([change])
        assert isinstance(verdict, Applied), verdict
        return verdict

    async def submit(self, change: Change) -> Verdict:
        """Write what a relay writes."""
        said = await self.before(change)
        if said is not None:
            return said
        self.changes.append(change)
        (verdict,) = await self.store.commit([change])
        return verdict

    def relay(self, store: Any = None) -> Relay:
        """Return another relay."""
        birth = Birth(lambda _workflow: None, lambda *_: None, Taken("3.11", "0"))
        at = self.clock.monotonic
        return Relay(store or self.store, self.submit, SeededRandom("relay"), birth, at)

    async def send(self, *items: OutboxItem) -> None:
        """Put items into the sender's outbox."""
        await self.commit(following(await self.head(SENDER), outbox=items))

    async def head(self, run: RunKey) -> RunHead:
        """Return the row of a run that exists."""
        head = await self.store.head(run)
        assert head is not None
        return head

    async def end(self, run: RunKey, last: EntryRow) -> None:
        """End a run with this entry."""
        change = msgspec.structs.replace(ending(await self.head(run), entries=0), entries=(last,))
        await self.commit(msgspec.structs.replace(change, digest=digest_of(change)))

    async def told(self) -> list[tuple[str, str, str]]:
        """Return what the sender was told: of which operation, what, and why not."""
        found: list[tuple[str, str, str]] = []
        for one in await self.store.mail(SENDER):
            said = msgspec.json.decode(one.message.body, type=Resolution)
            why = said.failure.message if said.failure else said.status
            found.append((said.operation, said.outcome, why))
        return found

    async def inbox(self) -> list[str]:
        """Return the ids of the target's messages."""
        return [one.message.message_id for one in await self.store.mail(TARGET)]

    async def _nothing(self, _change: Change) -> Verdict | None:
        return None


def play(test: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        await world.begin()
        await test(world)

    asyncio.run(main())


async def until_idle(relay: Relay) -> None:
    """Wait until a relay has nothing more to do for now."""
    while relay._task is not None and not relay._task.done():
        await asyncio.sleep(0)


async def finish(*relays: Relay) -> None:
    """Let relays see to the sender's outbox until they rest."""
    for relay in relays:
        relay.wake(SENDER)
    for relay in relays:
        await relay.close(10)


def test_a_start_makes_a_run_and_tells_the_sender() -> None:
    """The child knows its parent and its parent's principal, and is watched from its first moment."""

    async def test(world: World) -> None:
        await world.send(birth_of_child())
        await finish(world.relay())
        head = await world.head(TARGET)
        (first,) = await world.store.journal(TARGET)
        entry = from_row(first.row)
        assert isinstance(entry, Started)
        assert (head.origin, head.workflow, head.status) == ("sender~1~r:1", "child", Status.READY)
        assert (entry.principal, entry.namespace) == ("ann", "target")
        assert await world.told() == [("r:1", "started", "")]
        await world.commit(Terminate(TARGET, "root", "enough"))
        await finish(relay := world.relay())
        relay = world.relay()
        relay.wake(TARGET)
        await relay.close(10)
        assert await world.told() == [("r:1", "started", ""), ("r:1", "ended", "terminated")]
        assert await world.store.outbox(10) == []

    play(test)


def test_a_quiet_start_tells_nothing() -> None:
    """Nobody waits for the start alone: no message, no write of the parent's."""

    async def test(world: World) -> None:
        await world.send(birth_of_child(body=b'{"arguments":{}}'))
        await finish(world.relay())
        assert await world.told() == []
        assert await world.store.outbox(10) == []

    play(test)


@given(st.integers(0, 2**32), st.integers(2, 3))
def test_relays_at_once_do_everything_once(seed: int, count: int) -> None:
    """However their writings interleave: one child, each message in its order, each answer once, nothing left."""

    async def main() -> None:
        world = World()
        source = random.Random(seed)

        async def dawdle(_change: Change) -> None:
            for _ in range(source.randrange(6)):
                await asyncio.sleep(0)

        world.before = dawdle
        await world.begin()
        sent = [birth_of_child(), *(item(OutboxKind.SIGNAL, n) for n in range(2, 6))]
        await world.send(*sent)
        await finish(*(world.relay() for _ in range(count)))
        assert await world.inbox() == [one.message_id for one in sent[1:]]
        told = await world.told()
        assert Counter(told) == {
            ("r:1", "started", ""): 1,
            **{(f"r:{n}", "sent", ""): 1 for n in range(2, 6)},
        }
        assert await world.store.outbox(10) == []

    asyncio.run(main())


def test_a_relay_that_comes_late_changes_nothing() -> None:
    """It still holds the items when the child has ended and its id is another run's, and the sender another generation."""

    async def test(world: World) -> None:
        close = item(OutboxKind.TERMINATE, 9, operation="", origin="sender~1~r:1")
        signal = item(OutboxKind.SIGNAL, 2, origin="sender~1~r:1")
        await world.send(birth_of_child(), signal, close)
        gate = asyncio.Event()

        async def wait(_change: Change) -> None:
            await gate.wait()

        late, world.before = world.relay(), wait
        late.wake(SENDER)
        await asyncio.sleep(0.01)
        world.before = world._nothing
        await finish(world.relay())
        assert (await world.head(TARGET)).status is Status.TERMINATED
        await world.commit(starting("target", generation=2, worker=W))
        mail = tuple(one.message.message_id for one in await world.store.mail(SENDER))
        await world.commit(ending(await world.head(SENDER), consumed=mail))
        await world.commit(starting("sender", generation=2, worker=W))
        await world.send(item(OutboxKind.SIGNAL, 3, generation=2))
        before = (await world.head(TARGET), await world.inbox(), await world.told())
        gate.set()
        await late.close(10)
        assert (await world.head(TARGET), await world.inbox(), await world.told()) == before
        assert [one.operation for _, one in await world.store.outbox(10, run=SENDER)] == ["r:3"]

    play(test)


def test_a_child_that_was_started_again_by_somebody_is_still_ours() -> None:
    """Its first generation says who its parent was: the parent is told that it started, not that its id is taken."""

    async def test(world: World) -> None:
        await world.send(birth_of_child())
        started = world.relay()
        await finish(started)
        (clear,) = (one for one in world.changes if isinstance(one, ClearOutbox))
        await world.commit(Terminate(TARGET, "root", "enough"))
        await world.commit(starting("target", generation=2))
        (_, again) = (await world.told(), world.relay())
        await world.send(birth_of_child())
        world.changes.clear()
        await finish(again)
        (second,) = (one for one in world.changes if isinstance(one, ClearOutbox))
        assert second.answers == clear.answers

    play(test)


def test_a_child_that_a_fork_has_started_tells_its_parent_too() -> None:
    """A fork under the origin's keys asks for the same run: whichever of the two comes first, both are told how it ends."""

    async def test(world: World) -> None:
        fork = RunKey(SENDER.tenant, "fork")
        await world.commit(starting("fork", worker=W))
        parent = Parent("sender", 1, OperationId("r:1"))
        asked = ChildBody(Raw(b"{}"), tells_start=True, parent=parent)
        item = birth_of_child(body=msgspec.json.encode(asked))
        await world.commit(following(await world.head(fork), outbox=(item,)))
        relay = world.relay()
        relay.wake(fork)
        await relay.close(10)
        await world.send(birth_of_child())
        await finish(world.relay())
        assert await world.told() == [("r:1", "started", "")]
        await world.commit(Terminate(TARGET, "root", "enough"))
        relay = world.relay()
        relay.wake(TARGET)
        await relay.close(10)
        assert await world.told() == [("r:1", "started", ""), ("r:1", "ended", "terminated")]
        assert len(await world.store.mail(fork)) == 2

    play(test)


def test_an_id_that_is_taken_is_said_to_be() -> None:
    """By a run that nobody has started as a child, open or ended."""

    async def test(world: World) -> None:
        await world.commit(starting("target"))
        await world.send(birth_of_child())
        await finish(world.relay())
        ((_, outcome, why),) = await world.told()
        assert outcome == "refused"
        assert (
            why
            == "the id is taken by a run of workflow fix that this run did not start by this call"
        )

    play(test)


def test_a_full_inbox_holds_up_what_is_behind_it_and_nothing_else() -> None:
    """Items for the same run wait in their order; for others they do not; tried again, all arrive."""

    async def test(world: World) -> None:
        other = RunKey("default", "other")
        for name in ("target", "other"):
            await world.commit(starting(name))

        async def is_full(change: Change) -> Verdict | None:
            full = isinstance(change, PutMessage) and change.run == TARGET
            return Refused("full") if full else None

        world.before = is_full
        await world.send(
            item(OutboxKind.SIGNAL, 1),
            item(OutboxKind.TERMINATE, 2),
            item(OutboxKind.SIGNAL, 3, target=other),
        )
        await finish(world.relay())
        assert await world.told() == [("r:3", "sent", "")]
        assert (await world.head(TARGET)).status is Status.READY
        world.before = world._nothing
        world.clock.advance(RELAY_AFTER)
        relay = world.relay()
        assert relay.sweep() == SWEEP_SECONDS
        await relay.close(10)
        assert (await world.head(TARGET)).status is Status.TERMINATED
        assert ("r:1", "sent", "") in await world.told()

    play(test)


def test_what_is_held_up_starves_nobody() -> None:
    """More items than a look brings lie before the one that can be done."""

    async def test(world: World) -> None:
        for name in ("target", "other"):
            await world.commit(starting(name))

        async def is_full(change: Change) -> Verdict | None:
            full = isinstance(change, PutMessage) and change.run == TARGET
            return Refused("full") if full else None

        world.before = is_full
        stuck = [item(OutboxKind.SIGNAL, n) for n in range(1, BATCH + 50)]
        await world.send(*stuck, item(OutboxKind.SIGNAL, 0, target=RunKey("default", "other")))
        await finish(world.relay())
        assert await world.told() == [("r:0", "sent", "")]

    play(test)


def test_a_message_to_nobody_or_to_a_run_that_has_ended_is_answered() -> None:
    """The sender is told why; a cancel of what has ended is no error."""

    async def test(world: World) -> None:
        gone = RunKey("default", "gone")
        await world.commit(starting("target", worker=W))
        await world.commit(ending(await world.head(TARGET)))
        await world.send(
            item(OutboxKind.SIGNAL, 1, target=gone),
            item(OutboxKind.CANCEL, 2, target=gone),
            item(OutboxKind.WATCH, 3, target=gone),
            item(OutboxKind.SIGNAL, 4),
            item(OutboxKind.CANCEL, 5),
        )
        await finish(world.relay())
        missing = "there is no such run"
        assert sorted(await world.told()) == [
            ("r:1", "unsent", missing),
            ("r:2", "unsent", missing),
            ("r:3", "unsent", missing),
            ("r:4", "unsent", "the run has ended"),
            ("r:5", "sent", ""),
        ]

    play(test)


def test_a_watch_of_what_has_ended_is_answered_at_once() -> None:
    """The end is read from the journal of the ended run; an open one is watched."""

    async def test(world: World) -> None:
        end = to_row(Completed(msgspec.Raw(b"7")), 1, 1)
        await world.commit(starting("target", worker=W))
        await world.end(TARGET, end)
        await world.send(item(OutboxKind.WATCH))
        await finish(world.relay())
        (one,) = await world.store.mail(SENDER)
        said = msgspec.json.decode(one.message.body, type=Resolution)
        assert (said.outcome, said.status, bytes(said.value)) == ("ended", "completed", b"7")
        assert one.message.message_id == "end/1~r:1"

    play(test)


def test_an_end_that_cannot_be_read_is_told_as_a_failure() -> None:
    """A watcher does not wait for ever for a run whose last entry is damaged, or is no end."""

    async def test(world: World) -> None:
        for number, body in (
            (1, b'{"type":"completed"'),
            (2, b'{"type":"timer_fired","operation":"r:1"}'),
        ):
            target = RunKey("default", f"t{number}")
            kind = "completed" if number == 1 else "timer_fired"
            await world.commit(starting(target.run_id, worker=W))
            last = row(1, body, kind=kind)
            await world.end(target, last)
            await world.send(item(OutboxKind.WATCH, number, target=target))
        await finish(world.relay())
        words = [why for _, outcome, why in sorted(await world.told()) if outcome == "ended"]
        assert "cannot be read" in words[0]
        assert words[1] == "the run is completed and its journal does not say how it ended"

    play(test)


def test_a_watcher_that_is_gone_is_no_reason_to_keep_the_word() -> None:
    """It has ended, or is another generation: the item goes, nothing is said."""

    async def test(world: World) -> None:
        await world.commit(starting("target", worker=W, watch=Watch(SENDER, 1, "r:1")))
        await world.commit(ending(await world.head(SENDER)))
        await world.commit(starting("sender", generation=2, worker=W))
        await world.commit(Terminate(TARGET, "root", "enough"))
        relay = world.relay()
        relay.wake(TARGET)
        await relay.close(10)
        assert await world.store.outbox(10) == []
        assert await world.told() == []

    play(test)


def test_nothing_crosses_to_another_tenant() -> None:
    """An item that says so is dropped, and the log says it."""

    async def test(world: World) -> None:
        foreign = RunKey("them", "target")
        await world.commit(starting("target", tenant="them"))
        await world.send(item(OutboxKind.TERMINATE, target=foreign))
        await finish(world.relay())
        assert (await world.head(foreign)).status is Status.READY
        assert await world.store.outbox(10) == []

    play(test)


def test_a_start_that_cannot_be_read_is_refused() -> None:
    """The parent is told; the item does not come again."""

    async def test(world: World) -> None:
        await world.send(birth_of_child(body=b"{"))
        await finish(world.relay())
        ((_, outcome, why),) = await world.told()
        assert outcome == "refused"
        assert "cannot be read" in why
        assert await world.store.outbox(10) == []

    play(test)


def test_one_item_that_breaks_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """A bug of ours is logged with the run; the others are done, and this one is tried again."""

    async def test(world: World) -> None:
        for name in ("target", "other"):
            await world.commit(starting(name))

        async def breaks(change: Change) -> Verdict | None:
            if isinstance(change, PutMessage) and change.run == TARGET:
                raise RuntimeError("a bug")
            return None

        world.before = breaks
        await world.send(
            item(OutboxKind.SIGNAL, 1),
            item(OutboxKind.SIGNAL, 2, target=RunKey("default", "other")),
        )
        await finish(world.relay())
        assert await world.told() == [("r:2", "sent", "")]
        world.before = world._nothing
        await finish(world.relay())
        assert len(await world.told()) == 2

    play(test)
    assert "item 1 (signal) for run target cannot be relayed" in caplog.text


def test_what_is_damaged_rests_longer_and_longer() -> None:
    """Mended, it is done; until then it is tried after one second, two, four … five minutes, whatever else is going on."""

    async def test(world: World) -> None:
        await world.commit(starting("target"))
        tries: list[float] = []

        async def is_damaged(change: Change) -> Verdict | None:
            if not isinstance(change, ClearOutbox):
                return None
            tries.append(world.clock.monotonic())
            return Refused("corrupt")

        world.before = is_damaged
        await world.send(item(OutboxKind.SIGNAL))
        relay = world.relay()
        for _ in range(900):
            relay.wake(SENDER)
            await until_idle(relay)
            world.clock.advance(timedelta(seconds=1))
        gaps = [int(two - one) for one, two in itertools.pairwise(tries)]
        assert gaps == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
        assert await world.inbox() == ["run/sender~1~r:1"]
        world.before = world._nothing
        world.clock.advance(timedelta(minutes=5))
        relay.wake(SENDER)
        await relay.close(10)
        assert await world.told() == [("r:1", "sent", "")]

    play(test)


def test_a_store_that_is_away_is_asked_again_later(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is lost, and no more than one sweep a second is made."""

    async def test(world: World) -> None:
        await world.commit(starting("target"))
        await world.send(item(OutboxKind.SIGNAL))

        class Away:
            async def outbox(self, *_: Any, **__: Any) -> Any:
                raise StoreUnavailableError("away", hint="wait")

        relay = world.relay(Away())
        relay.wake(SENDER)
        assert relay.sweep() == SWEEP_SECONDS
        assert relay.sweep() == SWEEP_SECONDS
        await relay.close(10)
        assert await world.told() == []
        world.clock.advance(RELAY_AFTER)
        relay = world.relay()
        assert relay.sweep() == SWEEP_SECONDS
        await relay.close(10)
        assert await world.told() == [("r:1", "sent", "")]

    play(test)
    assert "waits for the store" in caplog.text


# Among workers


@outlast.workflow
async def small() -> str:
    return "small"


@outlast.workflow
async def big() -> str:
    return await outlast.run_child(small())


def test_any_worker_sees_to_what_a_dead_one_left() -> None:
    """It need not know the workflows; it comes when the items are two seconds old."""

    async def scenario(sim: Simulation) -> tuple[str, float]:
        first = await sim.start_worker(definitions=[big])
        await sim.start_worker(definitions=[])

        def die(moment: str, number: int) -> None:
            if moment == "after" and number == 2:
                first.kill()

        first.store.at_commit = die
        began = sim.clock.monotonic()
        await sim.client.start(big(), id="p")
        while await sim.store.head(RunKey("default", "p/r:1")) is None:
            await sim.a_while(since=began)
        waited = sim.clock.monotonic() - began
        await sim.start_worker()
        return await sim.client.handle("p", big).result(), waited

    options = WorkerOptions(library="simulated", poll=timedelta(seconds=5))
    result, waited = Simulation([small, big], options=options).run(scenario)
    assert result == "small"
    assert RELAY_AFTER.total_seconds() <= waited < 9


def test_a_child_is_born_in_the_hands_of_its_parents_worker() -> None:
    """A parent and its child take seven writes and the relay's three, none of them a claim."""

    async def scenario(sim: Simulation) -> tuple[list[str], RunHead | None]:
        worker = await sim.start_worker()
        await (await worker.client.start(big(), id="p")).result()
        head = await sim.store.head(RunKey("default", "p/r:1"))
        return [line.partition(" ")[2] for line in sim.trace if " commit " in line], head

    commits, head = Simulation([small, big]).run(scenario)
    assert [one.split()[-1] for one in commits[:3]] == [
        "StartRun=Applied",
        "RunChange=Applied",
        "StartRun=Applied",
    ]
    assert head is not None
    assert head.epoch == 1


def test_a_lost_answer_to_a_birth_loses_no_child() -> None:
    """The worker does not know that the child is its own; it looks, and finds it."""

    async def scenario(sim: Simulation) -> str:
        worker = await sim.start_worker()
        worker.store.faults = replace(worker.store.faults, lost_answer=0.4)
        return await (await sim.client.start(big(), id="p")).result()

    for seed in range(20):
        assert Simulation([small, big], seed=seed).run(scenario) == "small"
