"""The simulated loop: time without waiting, and processes that stop anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import urllib.request
from datetime import timedelta

import pytest

from outlast.testing import (
    Process,
    SimulatedClock,
    SimulatedLoop,
    SimulatedThreads,
    SimulationStuckError,
)
from outlast.testing.loop import NotSimulatedError


def test_nothing_really_waits() -> None:
    """After a day of sleeping the clock has moved by a day, and the test is over."""
    clock = SimulatedClock()
    begun = clock.now()
    SimulatedLoop(clock, longest=timedelta(days=2)).run_until_complete(asyncio.sleep(86_400))
    assert clock.now() - begun == timedelta(days=1)


def test_timers_fire_in_the_order_of_their_times() -> None:
    """Ties are first in, first out."""
    order: list[str] = []

    async def later(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        order.append(name)

    async def main() -> None:
        await asyncio.gather(later("c", 3), later("a", 1), later("b1", 2), later("b2", 2))

    SimulatedLoop(SimulatedClock()).run_until_complete(main())
    assert order == ["a", "b1", "b2", "c"]


def test_timeouts_work() -> None:
    """`asyncio.timeout` and `wait_for` are timers as others."""

    async def main() -> str:
        try:
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        except TimeoutError:
            return "over"
        return "never"

    assert SimulatedLoop(SimulatedClock()).run_until_complete(main()) == "over"


def test_a_deadlock_is_an_error() -> None:
    """When nothing can happen any more, the loop says who waits."""

    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    loop = SimulatedLoop(SimulatedClock())
    with pytest.raises(SimulationStuckError, match="nothing is ready"):
        loop.run_until_complete(main())
    loop.drain()


def test_what_does_not_end_is_an_error() -> None:
    """Simulated time is limited."""

    async def main() -> None:
        while True:
            await asyncio.sleep(1)

    loop = SimulatedLoop(SimulatedClock(), longest=timedelta(minutes=1))
    with pytest.raises(SimulationStuckError, match="time is over"):
        loop.run_until_complete(main())
    loop.drain()


def test_spinning_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns without any time passing are limited."""
    monkeypatch.setattr("outlast.testing.loop.MOST_TURNS", 1000)

    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    loop = SimulatedLoop(SimulatedClock())
    with pytest.raises(SimulationStuckError, match="spins"):
        loop.run_until_complete(main())
    loop.drain()


def ticking(process: Process, ticks: list[float], clock: SimulatedClock) -> asyncio.Task[None]:
    """Let a process tick each second."""

    async def tick() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                ticks.append(clock.monotonic())
        finally:
            ticks.append(-1)

    return asyncio.get_running_loop().create_task(tick(), context=process.context())


def test_a_killed_process_runs_nothing_any_more() -> None:
    """Not even its clean-up, while others go on."""
    clock, dead, alive = SimulatedClock(), Process("dead"), Process("alive")
    loop = SimulatedLoop(clock)
    lost: list[float] = []
    kept: list[float] = []

    async def main() -> None:
        tasks = [ticking(dead, lost, clock), ticking(alive, kept, clock)]
        await asyncio.sleep(3.5)
        dead.kill()
        tasks[0].cancel()
        await asyncio.sleep(3)

    loop.run_until_complete(main())
    assert (len(lost), len(kept)) == (3, 6)
    dead.release()
    loop.drain()


def test_a_frozen_process_goes_on_where_it_was() -> None:
    """What came due meanwhile happens when it is thawed, by the clock of then."""
    clock, process = SimulatedClock(), Process("p")
    loop = SimulatedLoop(clock)
    ticks: list[float] = []

    async def main() -> None:
        _task = ticking(process, ticks, clock)
        await asyncio.sleep(1.5)
        process.freeze()
        await asyncio.sleep(10)
        assert len(ticks) == 1
        process.thaw()
        await asyncio.sleep(1.2)

    loop.run_until_complete(main())
    assert [round(one - ticks[0], 3) for one in ticks] == [0, 10.5, 11.5]
    loop.drain()


def test_draining_ends_every_task() -> None:
    """Also those of dead processes, so that nothing is left to the garbage collector."""
    clock, process = SimulatedClock(), Process("p")
    loop = SimulatedLoop(clock)
    ticks: list[float] = []

    async def main() -> asyncio.Task[None]:
        task = ticking(process, ticks, clock)
        await asyncio.sleep(1.5)
        process.kill()
        return task

    task = loop.run_until_complete(main())
    process.release()
    loop.drain()
    assert task.cancelled()
    assert loop.errors == []


@pytest.mark.parametrize(
    "reach",
    [
        lambda: asyncio.open_connection("localhost", 1),
        lambda: asyncio.to_thread(print),
        lambda: asyncio.create_subprocess_exec("true"),
        lambda: socket.create_connection(("127.0.0.1", 9)),
        lambda: urllib.request.urlopen("http://127.0.0.1:9/"),
        lambda: SimulatedThreads(random.Random("threads")).run(
            lambda: socket.getaddrinfo("localhost", 80)
        ),
    ],
    ids=["network", "thread", "process", "socket", "urllib", "a socket in a thread"],
)
def test_what_lies_outside_a_simulation_is_refused_in_words(reach) -> None:
    """A body that reaches outside learns what to write, also by blocking calls and in a thread; and it cannot hide that."""

    async def main() -> None:
        with contextlib.suppress(Exception):
            await reach()
        await asyncio.sleep(3600)

    with pytest.raises(NotSimulatedError, match="simulation") as caught:
        SimulatedLoop(SimulatedClock()).run_until_complete(main())
    assert "double" in str(caught.value.hint)
