"""Journals that grow: a hint to the workflow, a limit, and what passes it."""

# ruff: noqa: D103 - the workflows of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.client import RunHandle
from outlast.errors import DefinitionError, RunCancelledError
from outlast.journal.entry import (
    Accepted,
    CancelRequested,
    ContinueSuggested,
    EffectCompleted,
    MessageReceived,
    TimerFired,
)
from outlast.store.change import RunHead, Status
from outlast.testing import Simulation
from outlast.worker.growth import HistoryLimits
from outlast.worker.worker import WorkerOptions

word = outlast.Signal("a word for those who grow", int)
happened: list[Any] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    happened.clear()


def options(**limits: int) -> WorkerOptions:
    return WorkerOptions(
        library="simulated",
        idle=timedelta(seconds=2),
        history=HistoryLimits(**limits),
    )


SMALL = options(warn_entries=10, most_entries=20)


@outlast.step
async def work(n: int) -> int:
    await asyncio.sleep(0.1)
    return n


@outlast.step
async def big(size: int) -> str:
    return "x" * size


@outlast.effect(start_to_close_timeout=timedelta(seconds=60))
async def slow(n: int) -> int:
    happened.append(("began", n))
    await asyncio.sleep(5)
    happened.append(("ended", n))
    return n


@outlast.effect(idempotent=True, retry=outlast.RetryPolicy(initial_interval=timedelta(seconds=30)))
async def stubborn(n: int) -> int:
    if outlast.attempt().number < 3:
        raise OSError("not yet")
    return n


@outlast.workflow
async def stubborn_at_the_limit() -> int:
    for _ in range(17):
        await work(0)
    found = await stubborn(1)
    return found + await work(2)


@outlast.workflow
async def for_ever() -> None:
    n = 0
    while True:
        n = await work(n)


@outlast.workflow
async def so_many(count: int) -> int:
    return sum([await work(1) for _ in range(count)])


@outlast.workflow
async def cleans_up(steps: int) -> None:
    try:
        while True:
            await work(0)
    finally:
        for n in range(steps):
            await work(n)


@outlast.workflow
async def until_told() -> int:
    count = 0
    while not outlast.info().continue_suggested:
        count += await work(1)
    return count


@outlast.workflow
async def when_told() -> int:
    background = asyncio.create_task(until_told.function())
    await outlast.wait_condition(lambda: outlast.info().continue_suggested)
    return await background


@outlast.workflow
async def grows_big() -> int:
    count = 0
    while True:
        count += len(await big(100_000))


@outlast.workflow
async def effect_at_the_limit(before: int) -> int:
    for _ in range(before):
        await work(0)
    found = await slow(1)
    await work(2)
    return found


@outlast.workflow
async def hears_at_the_limit() -> list[int]:
    for _ in range(18):
        await work(0)
    return [await outlast.receive(word) for _ in range(5)]


@outlast.workflow
async def sleeps_at_the_limit() -> str:
    task = asyncio.create_task(outlast.sleep(60))
    for _ in range(18):
        await work(0)
    await task
    return "slept"


CODE = [
    *(stubborn, stubborn_at_the_limit),
    *(work, big, slow, for_ever, so_many, cleans_up, until_told, when_told, grows_big),
    *(effect_at_the_limit, hears_at_the_limit, sleeps_at_the_limit),
]


def blocked(head: RunHead) -> bool:
    return head.status is Status.BLOCKED and head.owner is None


async def start(sim: Simulation, call: Any) -> RunHandle[Any]:
    await sim.start_worker()
    return await sim.client.start(call, id="r")


async def kinds(handle: RunHandle[Any], *wanted: type) -> list[Any]:
    return [one.entry for one in await handle.journal() if isinstance(one.entry, wanted)]


@pytest.mark.parametrize("flow", [until_told, when_told], ids=lambda flow: flow.name)
def test_the_workflow_is_told_once(flow: Any, caplog: pytest.LogCaptureFixture) -> None:
    """By an entry: so every replay knows it at the same place, whatever limits another worker has; conditions see it."""

    async def scenario(sim: Simulation) -> Any:
        first = await sim.start_worker()
        handle = await sim.client.start(flow(), id="r")
        await sim.until("r", lambda head: head.next_seq > 11)
        first.kill()
        await sim.start_worker(options=options(warn_entries=1000, most_entries=2000))
        return await handle.result(), await kinds(handle, ContinueSuggested)

    with caplog.at_level(logging.WARNING, "outlast.worker"):
        result, told = Simulation(CODE, options=SMALL).run(scenario)
    assert 8 <= result <= 10
    ((entry),) = told
    assert entry.entries >= 10
    said = [one.getMessage() for one in caplog.records if "continue_as_new" in one.getMessage()]
    assert len(said) == 1
    assert "run r: its journal has 10 entries" in said[0]


def test_a_run_stops_at_its_limit_and_goes_on_with_a_higher_one() -> None:
    """Blocked with words that name both remedies; accepted, it goes on from where it was."""

    async def scenario(sim: Simulation) -> Any:
        handle = await start(sim, so_many(30))
        await sim.until("r", blocked)
        status = await handle.status()
        stopped = status.entries
        await asyncio.sleep(900)
        assert (await handle.status()).entries == stopped
        with pytest.raises(DefinitionError, match="no room for more"):
            await handle.accept(history=20, reason="too little")
        await handle.accept(history=60, reason="it ends soon")
        return status, stopped, await handle.result(), await kinds(handle, Accepted)

    status, stopped, result, accepted = Simulation(CODE, options=SMALL).run(scenario)
    assert (status.reason, stopped, result) == ("history", 20, 30)
    assert "the journal has 20 entries" in status.waits["error"]
    assert "outlast.continue_as_new(...)" in status.waits["error"]
    assert "outlast runs accept r --history 40 --reason TEXT" in status.waits["error"]
    assert accepted == [Accepted(None, 60, by="tester", reason="it ends soon")]


def test_the_accepted_limit_is_one_too() -> None:
    """It is in the journal: another worker knows it, and stops there."""

    async def scenario(sim: Simulation) -> Any:
        handle = await start(sim, for_ever())
        await sim.until("r", blocked)
        await handle.accept(history=40, reason="a little more")
        head = await sim.until("r", lambda head: blocked(head) and head.next_seq > 20)
        sim.workers[0].kill()
        await sim.start_worker()
        await handle.accept(history=41, reason="once more")
        last = await sim.until("r", lambda head: blocked(head) and head.next_seq > 40)
        await handle.terminate("enough")
        return head.next_seq, last.next_seq

    assert Simulation(CODE, options=SMALL).run(scenario) == (40, 41)


def test_what_is_advised_lets_it_go_on_when_bytes_are_the_limit() -> None:
    """`explain` and the worker name one number, which is enough; one that raises nothing in bytes is refused."""

    async def scenario(sim: Simulation) -> Any:
        handle = await start(sim, grows_big())
        first = (await sim.until("r", blocked)).next_seq
        explained = await handle.explain()
        (typed,) = [one for one in explained.commands if "--history" in one]
        more = int(typed.partition("--history ")[2].partition(" ")[0])
        with pytest.raises(
            DefinitionError, match="no room for more, in entries or in bytes"
        ) as caught:
            await handle.accept(history=2 * first, reason="as many again")
        assert f"give {more} or another number from 100" in caught.value.hint
        await handle.accept(history=more, reason="as explained")
        second = await sim.until("r", lambda head: blocked(head) and head.next_seq > first)
        await handle.terminate()
        return first, second.next_seq, more, (await handle.status()).waits, explained.text

    limits = options(warn_bytes=500_000, most_bytes=1_000_000, warn_entries=20, most_entries=1000)
    first, second, more, _, text = Simulation(CODE, options=limits).run(scenario)
    assert second > 2 * first - 4
    assert more == 2000
    assert "--history 2000" in text


def test_bytes_count_too_and_rise_with_the_entries() -> None:
    """Twenty entries may have a megabyte here; what an operator allows in entries is allowed in bytes in proportion."""

    async def scenario(sim: Simulation) -> Any:
        handle = await start(sim, grows_big())
        first = (await sim.until("r", blocked)).next_seq
        error = (await handle.status()).waits["error"]
        await handle.accept(history=40, reason="twice")
        second = await sim.until("r", lambda head: blocked(head) and head.next_seq > first)
        await handle.terminate()
        return first, second.next_seq, error

    limits = options(warn_bytes=500_000, most_bytes=1_000_000, warn_entries=20, most_entries=20)
    first, second, error = Simulation(CODE, options=limits).run(scenario)
    assert 11 <= first <= 14
    assert 21 <= second <= 26
    assert "1.0 MiB" in error


def test_a_cancel_passes_and_its_clean_up_has_room() -> None:
    """A tenth more than the limit: enough to clean up, and blocked again where that is not enough."""
    limits = options(warn_entries=100, most_entries=100)

    async def scenario(sim: Simulation, steps: int) -> Any:
        handle = await start(sim, cleans_up(steps))
        await sim.until("r", blocked)
        await handle.cancel("too long")
        head = await sim.until("r", lambda head: head.next_seq > 100 and head.owner is None)
        if head.status is Status.BLOCKED:
            entries = head.next_seq
            await handle.accept(history=200, reason="clean up")
        else:
            entries = 0
        with pytest.raises(RunCancelledError, match="too long"):
            await handle.result()
        return entries, len(await kinds(handle, CancelRequested))

    def played(steps: int) -> Any:
        return Simulation(CODE, options=limits).run(lambda sim: scenario(sim, steps))

    assert played(5) == (0, 1)
    assert played(30) == (110, 1)


def test_a_resolution_passes() -> None:
    """What an operator says of an effect in doubt is taken in, and what follows of it has room."""

    async def scenario(sim: Simulation) -> Any:
        first = await sim.start_worker()
        handle = await sim.client.start(effect_at_the_limit(97), id="r")
        while not happened:
            await asyncio.sleep(0.1)
        first.kill()
        await sim.start_worker()
        head = await sim.until("r", blocked)
        await asyncio.sleep(120)
        assert (await handle.status()).status is Status.BLOCKED
        await handle.resolve("r:98", applied=7, reason="it is on the account")
        return head.reason, await handle.result()

    limits = options(warn_entries=100, most_entries=100)
    assert Simulation(CODE, options=limits).run(scenario) == ("history", 7)


@pytest.mark.parametrize("before", [16, 17, 18])
def test_what_is_under_way_ends_and_is_recorded(before: int) -> None:
    """An effect whose intent comes to the limit is attempted, once, and its outcome stands in the journal; no step begins then."""

    async def scenario(sim: Simulation) -> Any:
        handle = await start(sim, effect_at_the_limit(before))
        await sim.until("r", blocked)
        outcomes = await kinds(handle, EffectCompleted)
        await handle.accept(history=50, reason="go on")
        return len(outcomes), await handle.result()

    outcomes, result = Simulation(CODE, options=options(warn_entries=20, most_entries=20)).run(
        scenario
    )
    assert result == 1
    assert outcomes == (before < 18)
    assert happened == [("began", 1), ("ended", 1)]


def test_an_effect_that_is_tried_again_is_waited_for_first() -> None:
    """The run leaves memory between the attempts, as any other; with the outcome in its journal it is blocked."""

    async def scenario(sim: Simulation) -> Any:
        handle = await start(sim, stubborn_at_the_limit())
        between = await sim.until("r", lambda head: head.owner is None and head.next_seq > 5)
        head = await sim.until("r", blocked)
        outcomes = await kinds(handle, EffectCompleted)
        await handle.accept(history=60, reason="go on")
        return between.status, head.next_seq, len(outcomes), await handle.result()

    limits = options(warn_entries=20, most_entries=20)
    played = Simulation(CODE, options=limits).run(scenario)
    assert played == (Status.WAITING, 21, 1, 3)


def test_messages_wait_at_the_limit_in_their_order() -> None:
    """They wake nobody: no worker loads so long a journal for them; accepted, they are taken in one after another."""

    async def scenario(sim: Simulation) -> Any:
        handle = await start(sim, hears_at_the_limit())
        await sim.until("r", blocked)
        before = len(sim.trace)
        for n in range(5):
            await handle.send(word, n, id=str(n))
            await asyncio.sleep(10)
        claims = [one for one in sim.trace[before:] if "claimed" in one]
        detail = await handle.detail()
        await handle.accept(history=60, reason="let it hear")
        return claims, detail.unread, await handle.result(), await kinds(handle, MessageReceived)

    claims, unread, result, received = Simulation(CODE, options=SMALL).run(scenario)
    assert (claims, unread, result) == ([], 5, [0, 1, 2, 3, 4])
    assert len(received) == 5


def test_a_flood_does_not_fill_the_room_of_clean_up() -> None:
    """Beyond the limit messages may fill half of what is left; the others wait, and the cancel does its work."""

    async def scenario(sim: Simulation) -> Any:
        handle = await start(sim, cleans_up(4))
        await sim.until("r", blocked)
        for n in range(50):
            await handle.send(word, n)
        await handle.cancel("too long")
        with pytest.raises(RunCancelledError):
            await handle.result()
        return await handle.journal()

    journal = Simulation(CODE, options=options(warn_entries=100, most_entries=100)).run(scenario)
    place = next(n for n, one in enumerate(journal) if isinstance(one.entry, CancelRequested))
    received = [n for n, one in enumerate(journal) if isinstance(one.entry, MessageReceived)]
    assert len(received) == 50
    assert sum(n < len(journal) - 51 for n in received) <= 5
    assert place < 110


def test_timers_rest_at_the_limit() -> None:
    """None fires; it fires at once when the run goes on after its time."""

    async def scenario(sim: Simulation) -> Any:
        handle = await start(sim, sleeps_at_the_limit())
        await sim.until("r", blocked)
        await asyncio.sleep(900)
        fired = await kinds(handle, TimerFired)
        await handle.accept(history=60, reason="let it wake")
        return fired, await handle.result()

    assert Simulation(CODE, options=SMALL).run(scenario) == ([], "slept")


def test_the_end_is_always_written() -> None:
    """A body that has returned when the limit is reached is completed, with all messages that nobody took."""

    async def scenario(sim: Simulation) -> Any:
        handle = await sim.client.start(so_many(90), id="r")
        for n in range(300):
            await handle.send(word, n)
        await sim.start_worker()
        return await handle.result(), (await handle.status()).entries

    limits = options(warn_entries=200, most_entries=200)
    assert Simulation(CODE, options=limits).run(scenario) == (90, 2 + 90 + 300 + 1)


@pytest.mark.parametrize(
    "limits",
    [
        {"most_entries": 0},
        {"warn_bytes": -1},
        {"warn_entries": 1.5},
        {"warn_entries": 100, "most_entries": 50},
        {"warn_bytes": 100, "most_bytes": 50},
    ],
)
def test_limits_that_cannot_hold_are_refused(limits: Any) -> None:
    """Where they are written."""
    with pytest.raises(DefinitionError, match="HistoryLimits"):
        HistoryLimits(**limits)


def test_a_run_at_its_limit_is_terminated_as_any_other() -> None:
    """And a restart of its id begins with an empty journal."""

    async def scenario(sim: Simulation) -> Any:
        handle = await start(sim, for_ever())
        await sim.until("r", blocked)
        await handle.terminate("enough")
        again = await sim.client.start(so_many(3), id="r", if_closed="restart")
        return await again.result()

    assert Simulation(CODE, options=SMALL).run(scenario) == 3
