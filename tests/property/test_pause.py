"""Laws of pausing: whatever comes between a pause and its resume, nothing begins, nothing is lost, and the end is the same.

That no attempt begins between a pause in the journal and its resume is what the simulation looks at by itself, whenever a body begins.
"""

# ruff: noqa: D103
from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from searching import examples

import outlast
from outlast.journal.entry import (
    AlarmRaised,
    CancelRequested,
    Entry,
    MessageReceived,
    PauseRequested,
    ResumeRequested,
    from_row,
)
from outlast.store.change import RunHead, RunKey, Status
from outlast.testing import Faults, Receiver, Simulation
from outlast.worker.worker import WorkerOptions

RUN = RunKey("default", "r")
OPTIONS = WorkerOptions(
    library="simulated", lease=timedelta(seconds=3), idle=timedelta(seconds=0.5)
)
MESSAGES = 3
RESULT = "a b paid once 6 woken"
receiver = Receiver()
number = outlast.Signal("number", int)


@outlast.step
async def second_time(name: str) -> str:
    await asyncio.sleep(1.5)
    if outlast.attempt().number < 2:
        raise OSError("not yet")
    return name


@outlast.step
def in_thread(name: str) -> str:
    return name


@outlast.effect(idempotent=True)
def pay(name: str) -> str:
    receiver.apply_once(outlast.idempotency_key(), name)
    return name


async def find(name: str) -> outlast.Applied[str] | outlast.NotApplied:
    return receiver.find(outlast.idempotency_key())


@outlast.effect(probe=find, start_to_close_timeout=timedelta(seconds=2))
async def act(name: str) -> str:
    await asyncio.sleep(1)
    receiver.apply(outlast.idempotency_key(), name)
    return name


@outlast.workflow
async def everything() -> str:
    """Do several things at once, whose results depend on no order; clean up when it is told to stop."""

    async def sum_up() -> int:
        return sum([await outlast.receive(number) for _ in range(MESSAGES)])

    async def wake() -> str:
        await outlast.sleep(4)
        return "woken"

    try:
        parts = await asyncio.gather(
            second_time("a"), in_thread("b"), pay("paid"), act("once"), sum_up(), wake()
        )
    finally:
        await in_thread("clean up")
    return " ".join(map(str, parts))


CODE = [second_time, in_thread, pay, act, everything]

acts = st.sampled_from(["pause"] * 4 + ["resume"] * 3 + ["send"] * 3 + ["kill", "stop"])
delays = st.sampled_from([0.0, 0.0, 0.1, 0.4, 1.0, 1.6, 3.0])
scripts = st.lists(st.tuples(delays, acts), max_size=10)
ends = st.lists(st.tuples(delays, st.sampled_from(["cancel", "terminate"])), max_size=1)


class Play:
    """People and workers, who do what a script says."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.accepted: Counter[str] = Counter()
        self.sent = 0

    async def play(self, script: list[tuple[float, str]]) -> RunHead:
        """Do everything; then resume the run, send what was not sent, and wait for its end."""
        await self.sim.start_worker()
        await self.sim.client.start(everything(), id="r")
        for delay, what in script:
            await asyncio.sleep(delay)
            await self._do(what)
        await self._do("resume")
        while self.sent < MESSAGES:
            await self._do("send")
        return await self.sim.closed("r")

    async def _do(self, what: str) -> None:
        if what in {"kill", "stop"}:
            worker = self.sim.workers[-1]
            if what == "kill":
                worker.kill()
            else:
                await worker.stop(timedelta(seconds=1))
            await self.sim.start_worker()
            return
        handle: Any = self.sim.client.handle("r")
        if what == "send":
            # The same message may be sent again.
            self.sent += 1
            call = handle.send(number, min(self.sent, MESSAGES), id=f"{min(self.sent, MESSAGES)}")
        else:
            call = getattr(handle, what)()
        try:
            await call
        except outlast.RunConflictError:
            return
        self.accepted["sent" if what == "send" and self.sent > MESSAGES else what] += 1


def played(script: list[tuple[float, str]], seed: int) -> tuple[RunHead, list[Entry], Counter[str]]:
    """Return the run's row, its journal, and what was accepted."""
    receiver.forget()

    async def scenario(sim: Simulation) -> tuple[RunHead, list[Entry], Counter[str]]:
        play = Play(sim)
        head = await play.play(script)
        await asyncio.sleep(5)
        entries = [from_row(one.row) for one in await sim.store.journal(RUN)]
        if head.status is Status.COMPLETED:
            assert await sim.client.handle("r", everything).result() == RESULT
        return head, entries, play.accepted

    faults = Faults(latency=0.05 if seed % 2 else 0.0, lost_hint=0.5)
    sim = Simulation(CODE, seed=seed, faults=faults, options=OPTIONS, thread_delay=0.2)
    return sim.run(scenario)


@examples(0.6)
@given(scripts, ends, scripts, st.integers(0, 1000))
@example([(0.0, "pause"), (3.0, "send"), (0.0, "kill"), (3.0, "resume")], [], [], 1)
@example([(1.0, "pause"), (0.0, "resume"), (0.0, "pause"), (3.0, "stop")], [], [], 0)
@example([(1.6, "pause"), (3.0, "send")], [(0.0, "cancel")], [(0.0, "pause"), (3.0, "kill")], 1)
def test_a_paused_run_loses_nothing_and_ends_as_it_would_have(
    script: list[tuple[float, str]],
    end: list[tuple[float, str]],
    more: list[tuple[float, str]],
    seed: int,
) -> None:
    """Any interleaving of pauses, resumes, messages, timers, dying workers, and a cancel or a termination."""
    head, entries, accepted = played([*script, *end, *more], seed)
    kinds = Counter(type(one) for one in entries)
    assert not kinds[AlarmRaised]
    if head.status is not Status.TERMINATED:
        assert kinds[PauseRequested] == accepted["pause"]
        assert kinds[ResumeRequested] == accepted["resume"]
        assert kinds[CancelRequested] == accepted["cancel"]
        assert kinds[MessageReceived] == min(accepted["send"], MESSAGES)
    assert max(receiver.changes.values(), default=0) <= 1
    match head.status:
        case Status.COMPLETED:
            assert receiver.total == 2
        case Status.CANCELLED:
            assert accepted["cancel"] == 1
        case status:
            assert (status, accepted["terminate"]) == (Status.TERMINATED, 1)
