"""The faulty store, the simulated clock, threads and receiver."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

import pytest

from outlast.effects.intent import Applied as Found
from outlast.effects.intent import NotApplied
from outlast.errors import StoreUnavailableError
from outlast.journal.entry import EntryRow
from outlast.store.change import Applied, RunKey, StartRun, Unknown
from outlast.store.memory import MemoryStore
from outlast.testing import (
    Faults,
    FaultyStore,
    Process,
    Receiver,
    SimulatedClock,
    SimulatedLoop,
    SimulatedThreads,
)

T = TypeVar("T")
START = StartRun(RunKey("default", "r"), "w", "f", (EntryRow(0, 0, "started", "", "w", b"{}"),))


def with_store(faults: Faults, work: Callable[[FaultyStore], Awaitable[T]]) -> T:
    """Run something against a faulty store."""
    clock = SimulatedClock()
    store = FaultyStore(MemoryStore(clock), random.Random(1), faults=faults)

    async def main() -> T:
        return await work(store)

    loop = SimulatedLoop(clock)
    try:
        return loop.run_until_complete(main())
    finally:
        loop.drain()


def test_a_lost_request_is_unknown_and_not_written() -> None:
    """The verdict says nothing, the store has nothing."""

    async def work(store: FaultyStore) -> tuple[bool, object]:
        (verdict,) = await store.commit([START])
        store.faults = Faults()
        return isinstance(verdict, Unknown), await store.head(START.run)

    assert with_store(Faults(lost_request=1), work) == (True, None)


def test_a_lost_answer_is_unknown_and_written() -> None:
    """The verdict says nothing, the store has it."""

    async def work(store: FaultyStore) -> tuple[bool, bool]:
        (verdict,) = await store.commit([START])
        store.faults = Faults()
        return isinstance(verdict, Unknown), await store.head(START.run) is not None

    assert with_store(Faults(lost_answer=1), work) == (True, True)


@pytest.mark.parametrize("faults", [Faults(unavailable=1), Faults(down=True)])
def test_an_unavailable_store_has_written_nothing(faults: Faults) -> None:
    """It raises before anything is done, at every verb."""

    async def work(store: FaultyStore) -> object:
        for ask in (store.commit([START]), store.head(START.run), store.workers()):
            with pytest.raises(StoreUnavailableError):
                await ask
        store.faults = Faults()
        return await store.head(START.run)

    assert with_store(faults, work) is None


@pytest.mark.parametrize(("outlives", "written"), [(0.0, False), (1.0, True)])
def test_a_request_may_outlive_its_sender(outlives: float, written: bool) -> None:
    """On a network what was sent arrives, although the process that sent it is dead."""

    async def work(store: FaultyStore) -> tuple[bool, bool]:
        process = Process("p")
        asyncio.get_running_loop().create_task(store.commit([START]), context=process.context())
        # The first part of the way is the sender's, the second the network's, where there is one.
        await asyncio.sleep(0.03 if outlives else 0.02)
        process.kill()
        store.faults = Faults()
        early = await store.head(START.run) is not None
        await asyncio.sleep(1)
        return early, await store.head(START.run) is not None

    assert with_store(Faults(latency=0.2, outlives=outlives), work) == (False, written)


def test_a_process_killed_at_a_commit_stops_there() -> None:
    """Before: nothing is written. After: it is, and the process never hears of it."""
    for moment, written in (("before", False), ("after", True)):
        heard: list[object] = []

        async def work(
            store: FaultyStore, moment: str = moment, heard: list[object] = heard
        ) -> bool:
            process = Process("p")
            store.at_commit = lambda when, _: process.kill() if when == moment else None

            async def send() -> None:
                heard.append(await store.commit([START]))

            asyncio.get_running_loop().create_task(send(), context=process.context())
            await asyncio.sleep(1)
            store.at_commit = lambda _moment, _number: None
            return await store.head(START.run) is not None

        assert with_store(Faults(), work) is written
        assert heard == []


def test_hints_can_be_lost() -> None:
    """With every hint lost, a subscriber hears nothing."""

    async def work(store: FaultyStore) -> list[str]:
        heard: list[str] = []
        stop = store.subscribe(lambda: heard.append("!"))
        (verdict,) = await store.commit([START])
        assert isinstance(verdict, Applied)
        await asyncio.sleep(1)
        stop()
        return heard

    assert with_store(Faults(lost_hint=1), work) == []
    assert with_store(Faults(), work) == ["!"]


def test_the_wall_clock_jumps_and_the_other_does_not() -> None:
    """An administrator can set one of the two scales."""
    clock = SimulatedClock()
    wall, monotonic = clock.now(), clock.monotonic()
    clock.jump(timedelta(hours=-1))
    clock.advance(1.5)
    assert clock.now() - wall == timedelta(hours=-1, seconds=1.5)
    assert clock.monotonic() - monotonic == 1.5
    clock.set_wall(wall)
    assert clock.now() == wall


def test_a_thread_acts_and_returns_later() -> None:
    """`busy` says how long a thread goes on after it acted."""
    clock = SimulatedClock()
    threads = SimulatedThreads(random.Random(1))
    acted: list[float] = []

    def body() -> str:
        acted.append(clock.monotonic())
        threads.busy(10)
        return "done"

    async def main() -> str:
        return await threads.run(body)

    assert SimulatedLoop(clock).run_until_complete(main()) == "done"
    assert clock.monotonic() - acted[0] == pytest.approx(10)


def test_a_receiver_counts() -> None:
    """Requests and changes by key; equal keys get the first result where that is asked for."""
    receiver = Receiver()
    assert receiver.find("k") == NotApplied()
    assert [receiver.apply_once("k", 1), receiver.apply_once("k", 2)] == [1, 1]
    assert receiver.find("k") == Found(1)
    assert (receiver.requests["k"], receiver.changes["k"], receiver.total) == (2, 1, 1)
    assert receiver.apply("k", 3) == 1
    assert (receiver.changes["k"], receiver.total) == (2, 2)
