"""Messages as clients send them: with a start or without one, once whatever is lost; and the wait for an answer."""

# ruff: noqa: D103 - the workflows of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import reduce
from typing import Any

import msgspec
import pytest

import outlast
from outlast.client import Client
from outlast.client.update import _refusal
from outlast.errors import (
    DecodeError,
    DefinitionError,
    EncodeError,
    InboxFullError,
    NoWorkerWarning,
    RunConflictError,
    RunNotFoundError,
    StoreCorruptError,
    StoreError,
)
from outlast.journal.entry import MessageReceived, UpdateAnswered, from_row
from outlast.journal.failure import Failure, capture
from outlast.store.change import (
    Answer,
    Message,
    MessageKind,
    PutMessage,
    Refused,
    RunChange,
    RunKey,
    Terminate,
    Unknown,
    Verdict,
    WorkerId,
    WorkerRow,
    digest_of,
)
from outlast.store.memory import MemoryStore
from outlast.testing import Faults, SeededRandom, SimulatedClock, Simulation
from outlast.worker.worker import WorkerOptions

RUN = RunKey("default", "r")
SHORT = WorkerOptions(library="simulated", idle=timedelta(milliseconds=200))
LOSING_HINTS = WorkerOptions(library="simulated", poll=timedelta(seconds=1))

item = outlast.Signal("with start item", str)
nothing = outlast.Signal("with start nothing", type(None))
put = outlast.Update("with start put", str, int)
close = outlast.Update("with start close")


@outlast.workflow
async def basket(size: int) -> list[str]:
    items: list[str] = []

    def add(name: str) -> int:
        items.append(name)
        return len(items)

    outlast.on_signal(item, items.append)
    outlast.on_update(put, add)
    outlast.on_update(close, lambda _: None)
    await outlast.wait_condition(lambda: len(items) >= size)
    return items


@outlast.workflow
async def other() -> None:
    await outlast.receive(nothing)


CODE = [basket, other]


def simulate(scenario: Callable[[Simulation], Awaitable[Any]], **options: Any) -> Any:
    async def main(sim: Simulation) -> Any:
        await sim.start_worker()
        return await scenario(sim)

    return Simulation(CODE, **{"options": SHORT, **options}).run(main)


async def items(sim: Simulation) -> list[str]:
    rows = [from_row(one.row) for one in await sim.store.journal(RUN)]
    return [msgspec.json.decode(one.value) for one in rows if isinstance(one, MessageReceived)]


# With a start


@pytest.mark.parametrize("within", [False, True])
def test_a_run_is_started_with_its_first_message(within: bool) -> None:
    """From outside, or born in the worker of the same process; the next one goes to the run that is there, whatever its input."""

    async def scenario(sim: Simulation) -> Any:
        client = sim.workers[0].client if within else sim.client
        first = await client.signal_with_start(basket(2), item, "tea", id="r", message_id="1")
        again = await client.signal_with_start(basket(2), item, "tea", id="r", message_id="1")
        await client.signal_with_start(basket(9), item, "milk", id="r")
        return await first.result(), await again.result(), await sim.store.heads("default")

    first, again, heads = simulate(scenario)
    assert first == again == ["tea", "milk"]
    assert len(heads) == 1


def test_update_with_start_gives_the_updates_result() -> None:
    """Also the second time, when the run has ended with it; another update is told that it has ended."""

    async def scenario(sim: Simulation) -> Any:
        async def ask(name: str) -> int:
            return await sim.client.update_with_start(basket(2), put, name, id="r", update_id=name)

        results = [await ask("tea"), await ask("milk")]
        await sim.closed("r")
        results.append(await ask("milk"))
        with pytest.raises(RunConflictError, match="has ended"):
            await ask("salt")
        by_name = await sim.client.update_with_start(
            basket(1), "with start put", "tea", id="another"
        )
        return results, by_name

    assert simulate(scenario) == ([1, 2, 2], 1)


def test_one_run_is_started_by_many_at_once() -> None:
    """Each of them has its message delivered."""

    async def scenario(sim: Simulation) -> Any:
        calls = [
            sim.client.signal_with_start(basket(20), item, f"item {number}", id="r")
            for number in range(20)
        ]
        handles = await asyncio.gather(*calls)
        return await handles[0].result(), await sim.store.heads("default")

    result, heads = simulate(scenario, faults=Faults(latency=0.05), seed=4)
    assert sorted(result) == sorted(f"item {number}" for number in range(20))
    assert len(heads) == 1


def test_a_run_of_another_workflow_is_sent_nothing() -> None:
    """Whether it is open or closed; `restart` takes the place of a closed one."""

    async def scenario(sim: Simulation) -> Any:
        async def send(**options: Any) -> Any:
            return await sim.client.signal_with_start(basket(1), item, "tea", id="r", **options)

        handle = await sim.client.start(other(), id="r")
        for options in ({}, {"if_closed": "restart"}):
            with pytest.raises(RunConflictError, match="the workflow other"):
                await send(**options)
        await handle.send(nothing)
        await sim.closed("r")
        with pytest.raises(RunConflictError, match="the workflow other"):
            await send()
        before = await items(sim)
        return before, await (await send(if_closed="restart")).result()

    assert simulate(scenario) == ([None], ["tea"])


@pytest.mark.parametrize("if_closed", ["attach", "refuse", "restart"])
def test_a_closed_run_takes_no_message(if_closed: Any) -> None:
    """Unless it has this one already; `restart` begins a new one with it."""

    async def scenario(sim: Simulation) -> Any:
        async def send(name: str) -> Any:
            return await sim.client.signal_with_start(
                basket(1), item, name, id="r", message_id=name, if_closed=if_closed
            )

        await send("tea")
        await sim.closed("r")
        if if_closed != "restart":
            assert await (await send("tea")).result() == ["tea"]
            with pytest.raises(RunConflictError, match="has ended"):
                await send("milk")
            return await sim.store.head(RUN)
        assert await (await send("milk")).result() == ["milk"]
        return await sim.store.head(RUN)

    assert simulate(scenario).generation == (2 if if_closed == "restart" else 1)


# What the store answers


class Scripted(MemoryStore):
    """A memory store that is asked what to do at each commit, as long as there is a script."""

    def __init__(self) -> None:
        self.time = SimulatedClock()
        super().__init__(self.time)
        self.script: list[Callable[[Any], Any]] = []

    async def commit(self, changes: Any) -> list[Verdict]:
        """Ask the script, or write."""
        if not self.script:
            return await super().commit(changes)
        said = self.script.pop(0)(changes)
        return await said if asyncio.iscoroutine(said) else said

    async def write(self, changes: Any) -> list[Verdict]:
        """Write, whatever the script says."""
        return await super().commit(changes)

    async def owned(self) -> Any:
        """Return the head of the run, which a worker has taken."""
        worker = WorkerId("w")
        row = WorkerRow(worker, "host", 1, "b", (basket.name,), timedelta(seconds=15))
        await self.register(row)
        (claimed,) = (await self.claim(worker, frozenset({basket.name}), 1)).runs
        return claimed.head

    async def answer_with(self, message_id: str, body: bytes) -> None:
        """Take an update in and answer it, as the owner of the run."""
        head = await self.owned()
        change = RunChange(
            run=RUN,
            worker=head.owner,
            epoch=head.epoch,
            version=head.version,
            consumed=(message_id,),
            answers=(Answer(message_id, body),),
        )
        await self.write([msgspec.structs.replace(change, digest=digest_of(change))])


def scripted(test: Callable[[Scripted, Client], Any]) -> Any:
    """Run a test on a store and a client without a worker."""

    async def main() -> Any:
        store = Scripted()
        return await test(store, Client(store, random=SeededRandom("x"), principal="tester"))

    return asyncio.run(main())


@pytest.mark.parametrize("meanwhile", ["nothing", "ended", "restarted"])
def test_a_start_whose_answer_is_lost_is_not_made_twice(meanwhile: str) -> None:
    """Whatever has become of the run until that is found out: it is ours, and has its message once."""

    async def test(store: Scripted, client: Client) -> Any:
        async def lost(changes: Any) -> list[Verdict]:
            await store.write(changes)
            if meanwhile != "nothing":
                await store.write([Terminate(RUN, by="boss", reason="enough")])
            if meanwhile == "restarted":
                await Client(store, random=SeededRandom("y")).start(
                    basket(1), id="r", if_closed="restart"
                )
            return [Unknown("the answer was lost")] * len(changes)

        store.script = [lost]
        await client.signal_with_start(basket(1), item, "tea", id="r", if_closed="restart")
        return await store.head(RUN), len(await store.mail(RUN))

    head, unread = scripted(test)
    assert head.generation == (2 if meanwhile == "restarted" else 1)
    assert unread == (0 if meanwhile == "restarted" else 1)


def test_a_run_that_ends_while_it_is_asked_is_restarted() -> None:
    """The start met an open run, and the message a closed one."""

    async def test(store: Scripted, client: Client) -> Any:
        await client.start(basket(1), id="r")

        async def ended(changes: Any) -> list[Verdict]:
            await store.write([Terminate(RUN, by="boss", reason="enough")])
            return await store.write(changes)

        store.script = [store.write, ended]
        with pytest.raises(RunConflictError, match="has ended"):
            await client.signal_with_start(basket(1), item, "tea", id="r")
        await client.start(basket(1), id="r", if_closed="restart")
        store.script = [store.write, ended]
        await client.signal_with_start(basket(1), item, "tea", id="r", if_closed="restart")
        return await store.head(RUN), await store.mail(RUN)

    head, mail = scripted(test)
    assert head.generation == 3
    assert [one.message.name for one in mail] == [item.name]


def test_a_start_with_a_message_that_the_store_refuses_is_told() -> None:
    """With the store's words."""

    async def test(store: Scripted, client: Client) -> None:
        store.script = [lambda _: [Refused("unstorable", "messages[0].body")]]
        with pytest.raises(StoreError, match=r"messages\[0\].body"):
            await client.signal_with_start(basket(1), item, "tea", id="r")

    scripted(test)


def test_what_does_not_fit_is_refused_before_anything_is_written() -> None:
    """The value of a message, that of an update, and an id."""

    async def test(store: Scripted, client: Client) -> None:
        wrong: Any = 5
        with pytest.raises(EncodeError, match="signal 'with start item'"):
            await client.signal_with_start(basket(1), item, wrong, id="r")
        with pytest.raises(EncodeError, match="update 'with start put'"):
            await client.update_with_start(basket(1), put, wrong, id="r")
        with pytest.raises(DefinitionError, match="cannot be the id of a message"):
            await client.signal_with_start(basket(1), item, "tea", id="r", message_id="m" * 1500)
        assert await store.head(RUN) is None

    scripted(test)


def test_a_full_inbox_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """To whoever sends, asks, or sends with a start; a message that it has is accepted."""
    monkeypatch.setattr("outlast.store.judge.MAX_UNREAD", 2)

    async def test(store: Scripted, client: Client) -> None:
        handle = await client.start(basket(1), id="r")
        for name in ("tea", "milk"):
            await handle.send(item, name, id=name)
        await handle.send(item, "tea", id="tea")
        for work in (
            handle.send(item, "salt"),
            handle.update(put, "salt"),
            client.signal_with_start(basket(1), item, "salt", id="r"),
            client.update_with_start(basket(1), put, "salt", id="r"),
        ):
            with pytest.raises(InboxFullError, match="10,000 messages"):
                await work
        await handle.cancel()

    scripted(test)


def test_a_message_may_come_before_its_run() -> None:
    """When it says so; it is not taken for one of a later use of the id."""

    async def scenario(sim: Simulation) -> Any:
        handle = sim.client.handle("r", basket)
        with pytest.raises(RunNotFoundError):
            await handle.send(item, "tea")
        with pytest.raises(RunNotFoundError):
            await handle.update(put, "tea")
        await handle.send(item, "tea", early=True)
        await sim.client.start(basket(1), id="r")
        return await handle.result()

    assert simulate(scenario) == ["tea"]


# The wait


def test_an_answer_comes_without_any_hint() -> None:
    """Polling alone finds it."""

    async def scenario(sim: Simulation) -> Any:
        sim.outside.faults = Faults(lost_hint=1.0)
        handle = await sim.client.start(basket(1), id="r")
        began = sim.clock.monotonic()
        return await handle.update(put, "tea"), sim.clock.monotonic() - began

    result, seconds = simulate(scenario, options=LOSING_HINTS, faults=Faults(lost_hint=1.0))
    assert result == 1
    assert seconds < 10


def test_whoever_gives_up_leaves_nothing_behind() -> None:
    """The update stays, and is answered; the same id finds the answer."""

    async def test(store: Scripted, client: Client) -> Any:
        handle = await client.start(basket(1), id="r")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await handle.update(put, "tea", id="once")
        assert store._subscribers == []
        (unread,) = await store.mail(RUN)
        assert unread.message.message_id == "update/once"
        answer = UpdateAnswered("update/once", put.name, value=msgspec.Raw(b"7"))
        await store.answer_with("update/once", msgspec.json.encode(answer))
        return await handle.update(put, "tea", id="once")

    assert scripted(test) == 7


BROKEN: dict[str, tuple[bytes, type[Exception]]] = {
    "no JSON": (b"{", DecodeError),
    "another shape": (b'{"type":"update_answered","message_id":5}', DecodeError),
    "another entry": (b'{"type":"timer_fired","operation":"r:1"}', DecodeError),
    "a value of another type": (
        b'{"type":"update_answered","message_id":"u","name":"n","value":"x"}',
        DecodeError,
    ),
    "a failure that never ends": (
        msgspec.json.encode(
            UpdateAnswered(
                "u",
                "n",
                failure=reduce(
                    lambda inner, _: Failure("E", "x", cause=inner), range(50), Failure("E", "x")
                ),
            )
        ),
        StoreCorruptError,
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_damaged_answer_is_an_error_of_its_own(kind: str) -> None:
    """Nobody waits for it for ever."""

    async def test(store: Scripted, client: Client) -> None:
        handle = await client.start(basket(1), id="r")
        message = Message("update/u", MessageKind.UPDATE, put.name, "", b'"tea"')
        await store.write([PutMessage(RUN, message)])
        await store.answer_with("update/u", BROKEN[kind][0])
        with pytest.raises(BROKEN[kind][1]):
            await handle.update(put, "tea", id="u")

    scripted(test)


def test_no_worker_is_said_to_whoever_waits_for_an_answer() -> None:
    """After five seconds, once."""

    async def main(sim: Simulation) -> None:
        handle = await sim.client.start(basket(1), id="r")
        asked = sim.spawn(handle.update(put, "tea"))
        await asyncio.sleep(4.9)
        assert said == []
        await asyncio.sleep(20)
        asked.cancel()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        Simulation(CODE).run(main)
    (one,) = said
    assert one.category is NoWorkerWarning
    assert "no live worker has registered workflow 'basket'" in str(one.message)


def test_a_sender_whose_answer_was_lost_is_not_asked_to_send_again() -> None:
    """The message is put once, whatever the network does, and each look at the answer may fail and be made again by the caller."""

    async def scenario(sim: Simulation) -> Any:
        handle = await sim.client.start(basket(30), id="r")
        sim.outside.faults = Faults(lost_request=0.3, lost_answer=0.0)
        results = [await handle.update(put, f"item {number}") for number in range(30)]
        sim.outside.faults = Faults()
        return results, await handle.result()

    results, result = simulate(scenario, seed=2)
    assert results == list(range(1, 31))
    assert result == [f"item {number}" for number in range(30)]


def test_an_update_of_nothing_carries_and_answers_nothing() -> None:
    """Neither has a value to give."""

    async def scenario(sim: Simulation) -> Any:
        handle = await sim.client.start(basket(1), id="r")
        return await handle.update(close), await handle.update("with start close")

    assert simulate(scenario) == (None, None)


def test_a_group_of_failures_is_told_with_what_is_in_it() -> None:
    """Whoever sent the update learns what failed, not only that two things did."""
    failure = capture(ExceptionGroup("two", [OSError("no route"), ValueError("no port")]))
    error = _refusal(UpdateAnswered("update/1", "dial", failure=failure), failure, RUN)
    assert isinstance(error, outlast.UpdateFailedError)
    assert error.message.endswith("OSError: no route; ValueError: no port")
