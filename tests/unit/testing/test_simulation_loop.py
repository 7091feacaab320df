"""Simulated processes and clocks: what stands still, what goes on, and in which order."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest

from outlast.testing import Process, SimulatedClock, SimulatedLoop
from outlast.testing.clock import SkewedClock
from outlast.testing.thread import SimulatedThreads


def test_a_stalled_process_has_threads_that_go_on() -> None:
    """The event loop stands still, as under a callback that blocks; a frozen process has no thread that runs."""
    clock, process = SimulatedClock(), Process("p")
    loop = SimulatedLoop(clock, source=random.Random("stall"))
    threads = SimulatedThreads(random.Random("threads"))
    turns: list[str] = []
    ticks: list[float] = []

    async def turn() -> None:
        stop = threads.every(1, lambda: ticks.append(clock.monotonic()), name="tick")
        while len(turns) < 4:
            await asyncio.sleep(1)
            turns.append("turn")
        stop()

    async def main() -> None:
        task = asyncio.get_running_loop().create_task(turn(), context=process.context())
        await asyncio.sleep(1.5)
        process.stall()
        await asyncio.sleep(3)
        assert (len(turns), len(ticks)) == (1, 4)
        process.thaw()
        process.freeze()
        await asyncio.sleep(3)
        assert (len(turns), len(ticks)) == (1, 4)
        process.thaw()
        await task

    loop.run_until_complete(main())
    loop.drain()


def test_what_a_stalled_loop_is_told_by_a_thread_waits_until_it_turns() -> None:
    """`call_soon_threadsafe` of a thread reaches the event loop of its process, and not the thread's."""
    clock, process = SimulatedClock(), Process("p")
    loop = SimulatedLoop(clock)
    threads = SimulatedThreads(random.Random("threads"))
    told: list[float] = []

    async def ask() -> None:
        running = asyncio.get_running_loop()
        note = lambda: told.append(clock.monotonic())  # noqa: E731
        await threads.run(lambda: running.call_soon_threadsafe(note))

    async def main() -> None:
        task = asyncio.get_running_loop().create_task(ask(), context=process.context())
        await asyncio.sleep(0)
        process.stall()
        await asyncio.sleep(5)
        assert not told
        process.thaw()
        await task

    since = clock.monotonic()
    loop.run_until_complete(main())
    assert [round(one - since) for one in told] == [5]
    loop.drain()


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_mixes_processes_and_keeps_the_order_within_each(seed: int) -> None:
    """First in, first out inside a process; which process has its turn is chance."""
    loop = SimulatedLoop(SimulatedClock(), source=random.Random(seed))
    order: list[tuple[str, int]] = []

    async def main() -> None:
        for number in range(20):
            for name, process in processes.items():
                loop.call_soon(order.append, (name, number), context=process.context())
        await asyncio.sleep(1)

    processes = {name: Process(name) for name in "ab"}
    loop.run_until_complete(main())
    for name in processes:
        assert [one for one in order if one[0] == name] == [(name, at) for at in range(20)]
    assert order != sorted(order, key=lambda one: one[1])
    loop.drain()


def test_equal_seeds_choose_equally() -> None:
    """And without a seed everything is first in, first out."""

    def played(source: random.Random | None) -> list[int]:
        loop = SimulatedLoop(SimulatedClock(), source=source)
        order: list[int] = []

        async def main() -> None:
            for number in range(30):
                context = Process(f"p{number % 3}").context()
                loop.call_soon(order.append, number, context=context)
            await asyncio.sleep(1)

        loop.run_until_complete(main())
        loop.drain()
        return order

    assert played(random.Random(1)) == played(random.Random(1)) != played(random.Random(2))
    assert played(None) == list(range(30))


def test_another_machines_clock_runs_as_fast_and_shows_other_times() -> None:
    """Both scales are shifted, each by its own amount, and neither drifts."""
    base = SimulatedClock()
    skewed = SkewedClock(base, wall=timedelta(seconds=-40), booted=5000.0)
    assert base.now() - skewed.now() == timedelta(seconds=40)
    assert skewed.monotonic() - base.monotonic() == 5000
    wall, boot = skewed.now(), skewed.monotonic()
    base.advance(timedelta(seconds=7))
    base.jump(timedelta(seconds=-100))
    assert skewed.now() - wall == timedelta(seconds=-93)
    assert skewed.monotonic() - boot == pytest.approx(7)
