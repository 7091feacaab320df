"""Pausing and resuming: what ends, what begins, what waits, and in which order it goes on."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.journal.entry import (
    CancelRequested,
    Entry,
    MessageReceived,
    PauseRequested,
    ResumeRequested,
    StepCompleted,
    TimerFired,
    from_row,
)
from outlast.store.change import RunKey, Status
from outlast.testing import Faults, Receiver, Simulation

RUN = RunKey("default", "r")
began: list[str] = []
"""What bodies began, in order."""
receiver = Receiver()
go = outlast.Signal("go", str)


@outlast.step
async def slow(name: str) -> str:
    began.append(name)
    await asyncio.sleep(5)
    return name


@outlast.step
def in_thread(name: str) -> str:
    began.append(name)
    return name


@outlast.step
async def third_time(name: str) -> str:
    began.append(f"{name}{outlast.attempt().number}")
    if outlast.attempt().number < 3:
        raise OSError("not yet")
    return name


@outlast.effect(start_to_close_timeout=timedelta(seconds=5))
def once_in_thread(name: str) -> str:
    began.append(name)
    return receiver.apply(outlast.idempotency_key(), name)


@outlast.effect(start_to_close_timeout=timedelta(seconds=5))
async def once(name: str) -> str:
    began.append(name)
    return receiver.apply(outlast.idempotency_key(), name)


async def find(name: str) -> outlast.Applied[str] | outlast.NotApplied:
    began.append("asked")
    return receiver.find(outlast.idempotency_key())


@outlast.effect(probe=find, start_to_close_timeout=timedelta(seconds=5))
async def answer_lost(name: str) -> str:
    began.append(name)
    await asyncio.sleep(3)
    receiver.apply(outlast.idempotency_key(), name)
    raise OSError("the answer was lost")


@outlast.workflow
async def asks() -> str:
    return await answer_lost("x")


@outlast.workflow
async def two_steps() -> str:
    return await slow("a") + await slow("b")


@outlast.workflow
async def timer_beside_a_step() -> str:
    found, _ = await asyncio.gather(slow("a"), outlast.sleep(2))
    return found


@outlast.workflow
async def nap() -> str:
    await outlast.sleep(10)
    return await in_thread("after")


@outlast.workflow
async def retry() -> str:
    return await third_time("t")


@outlast.workflow
async def thread_step() -> str:
    return await in_thread("x")


@outlast.workflow
async def thread_effect() -> str:
    return await once_in_thread("x")


@outlast.workflow
async def effect_at_once() -> str:
    return await once("x")


@outlast.workflow
async def race() -> list[str]:
    order: list[str] = []

    async def timer() -> None:
        await outlast.sleep(20)
        order.append("timer")

    async def signals() -> None:
        for _ in range(2):
            order.append(await outlast.receive(go))

    await asyncio.gather(timer(), signals())
    return order


@outlast.workflow
async def cleans_up() -> str:
    try:
        await outlast.receive(go)
    except asyncio.CancelledError:
        await in_thread("clean up")
        raise
    return "never"


CODE = [
    *(slow, in_thread, third_time, once_in_thread, once, answer_lost, asks),
    *(
        timer_beside_a_step,
        two_steps,
        nap,
        retry,
        thread_step,
        thread_effect,
        effect_at_once,
        race,
        cleans_up,
    ),
]


@pytest.fixture(autouse=True)
def _clean() -> None:
    began.clear()
    receiver.forget()


async def entries_of(sim: Simulation) -> list[Entry]:
    return [from_row(one.row) for one in await sim.store.journal(RUN)]


async def paused(sim: Simulation) -> Any:
    """Wait until the run is parked as paused."""
    return await sim.until("r", lambda head: head.status is Status.PAUSED)


def test_what_is_being_attempted_ends_and_nothing_else_begins() -> None:
    """The outcome is recorded, the run leaves memory as paused, and goes on where it stood; who asked is in the journal."""

    async def scenario(sim: Simulation) -> tuple[list[str], Any, list[Entry]]:
        worker = await sim.start_worker()
        handle = await sim.client.start(two_steps(), id="r")
        await asyncio.sleep(1)
        await handle.pause("maintenance")
        head = await paused(sim)
        assert (head.owner, head.wake_at, worker.worker.runs) == (None, None, [])
        await asyncio.sleep(1000)
        before = list(began)
        await handle.resume("done")
        assert await handle.result() == "ab"
        return before, head, await entries_of(sim)

    before, head, entries = Simulation(CODE).run(scenario)
    assert before == ["a"]
    assert head.next_seq == 4
    assert entries[2:5] == [
        PauseRequested("tester", "maintenance"),
        StepCompleted("r:1", "slow", entries[3].value),
        ResumeRequested("tester", "done"),
    ]
    assert began == ["a", "b"]


def test_a_run_that_is_paused_before_anybody_took_it_up_begins_nothing() -> None:
    """It is taken up, says so, and waits; the first attempt comes after the resume."""

    async def scenario(sim: Simulation) -> str:
        handle = await sim.client.start(two_steps(), id="r")
        await handle.pause()
        await sim.start_worker()
        await paused(sim)
        await asyncio.sleep(100)
        assert began == []
        await handle.resume()
        return await handle.result()

    assert Simulation(CODE).run(scenario) == "ab"


def test_the_next_attempt_of_what_failed_waits_for_the_resume() -> None:
    """However long it is due; it has the next number then."""

    async def scenario(sim: Simulation) -> list[str]:
        await sim.start_worker()
        handle = await sim.client.start(retry(), id="r")
        await asyncio.sleep(0.5)
        await handle.pause()
        await paused(sim)
        await asyncio.sleep(100)
        before = list(began)
        await handle.resume()
        assert await handle.result() == "t"
        return before

    assert Simulation(CODE).run(scenario) == ["t1"]
    assert began == ["t1", "t2", "t3"]


@pytest.mark.parametrize("workflow", [thread_step, thread_effect], ids=lambda one: one.name)
def test_a_body_that_waits_for_a_thread_has_not_begun(workflow: Any) -> None:
    """It begins after the resume; an effect of which that is so is not in doubt, whoever takes the run up."""

    async def scenario(sim: Simulation) -> str:
        first = await sim.start_worker()
        first.threads.crowded = 3.0
        handle = await sim.client.start(workflow(), id="r")
        await asyncio.sleep(1)
        await handle.pause()
        await paused(sim)
        assert began == []
        first.kill()
        await asyncio.sleep(100)
        await sim.start_worker()
        await handle.resume()
        return await handle.result()

    assert Simulation(CODE).run(scenario) == "x"
    assert began == ["x"]


@pytest.mark.parametrize("kill", [False, True], ids=["", "by another worker"])
def test_what_became_of_an_attempt_is_asked_after_the_resume(kill: bool) -> None:
    """An attempt of unknown end: its probe waits too, and then tells; nothing is attempted without it."""

    async def scenario(sim: Simulation) -> str:
        worker = await sim.start_worker()
        handle = await sim.client.start(asks(), id="r")
        await asyncio.sleep(1)
        await handle.pause()
        await paused(sim)
        await asyncio.sleep(60)
        assert began == ["x"]
        if kill:
            worker.kill()
            await sim.start_worker()
        await handle.resume()
        return await handle.result()

    assert Simulation(CODE).run(scenario) == "x"
    assert (began, receiver.total) == (["x", "asked"], 1)


@pytest.mark.parametrize("way", ["pause", "stop"])
def test_an_intent_that_was_just_written_is_no_doubt_when_the_run_is_given_back(way: str) -> None:
    """The run is paused, or its worker stops, between the intent and the first attempt: the next owner begins it."""

    async def scenario(sim: Simulation) -> str:
        first = await sim.start_worker(faults=Faults(latency=0.5))
        handle = await sim.client.start(effect_at_once(), id="r")

        async def pause() -> None:
            await handle.pause()
            first.worker._deliver_mail(RUN)

        def intended(_: str, what: str) -> None:
            if what == "intent":
                sim.spawn(pause() if way == "pause" else first.stop())

        sim.invariants.happened = intended
        await sim.until("r", lambda head: head.next_seq > 2 and head.owner is None)
        assert began == []
        sim.invariants.happened = lambda *_: None
        await sim.start_worker()
        if way == "pause":
            await handle.resume()
        return await handle.result()

    assert Simulation(CODE).run(scenario) == "x"
    assert (began, receiver.total) == (["x"], 1)


def test_no_timer_fires_and_messages_wait_in_the_inbox() -> None:
    """The journal stands still; what came meanwhile is taken in after the resume, in the order in which it came."""

    async def scenario(sim: Simulation) -> tuple[list[str], list[Entry]]:
        await sim.start_worker()
        handle = await sim.client.start(race(), id="r")
        await asyncio.sleep(5)
        await handle.pause()
        head = await paused(sim)
        await asyncio.sleep(2)
        await handle.send(go, "early")
        await asyncio.sleep(60)
        await handle.send(go, "late")
        assert (await sim.store.head(RUN)).next_seq == head.next_seq
        assert head.wake_at is None
        assert len(await sim.store.mail(RUN)) == 2
        await asyncio.sleep(60)
        await handle.resume()
        return await handle.result(), await entries_of(sim)

    order, entries = Simulation(CODE).run(scenario)
    assert order == ["early", "timer", "late"]
    assert [type(one) for one in entries[2:7]] == [
        *(PauseRequested, ResumeRequested, MessageReceived, TimerFired, MessageReceived),
    ]


def test_a_timer_that_is_due_meanwhile_keeps_nobody_busy() -> None:
    """While an attempt still runs, the run is looked at when that ends, and not again and again because of the timer."""

    async def scenario(sim: Simulation) -> int:
        await sim.start_worker()
        handle = await sim.client.start(timer_beside_a_step(), id="r")
        await asyncio.sleep(1)
        await handle.pause()
        before = len(sim.trace)
        await paused(sim)
        looks = sum(" mail" in line or " commit" in line for line in sim.trace[before:])
        await handle.resume()
        assert await handle.result() == "a"
        return looks

    assert Simulation(CODE).run(scenario) < 10


def test_what_came_due_before_the_pause_is_not_held_by_it() -> None:
    """With no worker for a while, timer, pause and message are taken in as they came."""

    async def scenario(sim: Simulation) -> list[Entry]:
        first = await sim.start_worker()
        handle = await sim.client.start(race(), id="r")
        await sim.until("r", lambda head: head.status is Status.WAITING)
        first.kill()
        await handle.send(go, "before")
        await asyncio.sleep(30)
        await handle.pause()
        await asyncio.sleep(5)
        await handle.send(go, "after")
        await sim.start_worker()
        await paused(sim)
        return await entries_of(sim)

    entries = Simulation(CODE).run(scenario)
    assert [type(one) for one in entries[2:]] == [MessageReceived, TimerFired, PauseRequested]


def test_a_cancel_ends_the_pause_and_the_clean_up_runs() -> None:
    """It is taken in at once, before what waits longer in the inbox; all of that is in the journal."""

    async def scenario(sim: Simulation) -> tuple[Status, list[Entry]]:
        await sim.start_worker()
        handle = await sim.client.start(cleans_up(), id="r")
        await handle.pause()
        await paused(sim)
        await handle.send(go, "too late")
        await handle.cancel("no longer needed")
        return (await sim.closed("r")).status, await entries_of(sim)

    status, entries = Simulation(CODE).run(scenario)
    assert status is Status.CANCELLED
    assert began == ["clean up"]
    kinds = [type(one) for one in entries]
    assert kinds.index(PauseRequested) < kinds.index(CancelRequested) < kinds.index(MessageReceived)


def test_a_run_that_ends_with_what_was_under_way_ends_although_it_is_paused() -> None:
    """Nothing had to begin for that; messages that waited for the resume are in the journal before its end."""

    async def scenario(sim: Simulation) -> tuple[Status, list[Entry]]:
        await sim.start_worker()
        handle = await sim.client.start(two_steps(), id="r")
        await asyncio.sleep(6)
        assert began == ["a", "b"]
        await handle.pause()
        await handle.send(go, "hello")
        head = await sim.closed("r")
        return head.status, await entries_of(sim)

    status, entries = Simulation(CODE).run(scenario)
    assert status is Status.COMPLETED
    assert any(isinstance(one, MessageReceived) for one in entries)


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_pause_outlives_the_worker_that_read_it(end: str) -> None:
    """In the middle of an attempt the worker dies or stops; the next one begins nothing."""

    async def scenario(sim: Simulation) -> str:
        first = await sim.start_worker()
        handle = await sim.client.start(two_steps(), id="r")
        await asyncio.sleep(1)
        await handle.pause()
        await asyncio.sleep(1)
        if end == "kill":
            first.kill()
        else:
            await first.stop(timedelta(seconds=1))
            assert (await sim.client.head(RUN)).status is Status.PAUSED
        await sim.start_worker()
        await paused(sim)
        await asyncio.sleep(60)
        assert began == ["a"]
        await handle.resume()
        return await handle.result()

    assert Simulation(CODE).run(scenario) == "ab"
    assert began == ["a", "a", "b"]


@pytest.mark.parametrize(
    ("acts", "is_paused"),
    [
        (["pause", "pause", "resume"], False),
        (["resume", "pause"], True),
        (["pause", "resume", "pause"], True),
        (["resume", "resume"], False),
    ],
    ids=["twice", "resumed first", "again", "for nothing"],
)
def test_the_last_word_counts(acts: list[str], is_paused: bool) -> None:
    """Whoever said what before, also when all of it is read at once, or while the run is paused."""

    async def scenario(sim: Simulation) -> None:
        handle = await sim.client.start(nap(), id="r")
        for act in acts:
            await getattr(handle, act)()
        await sim.start_worker()
        wanted = Status.PAUSED if is_paused else Status.COMPLETED
        await sim.until("r", lambda head: head.status is wanted)
        assert began == ([] if is_paused else ["after"])
        if is_paused:
            for act in acts:
                await getattr(handle, act)()
            await sim.until("r", lambda head: head.status is wanted and not head.mail)
            await handle.resume()
            await handle.result()

    Simulation(CODE).run(scenario)


def test_a_run_that_has_ended_is_not_paused() -> None:
    """Both are refused in words."""

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker()
        handle = await sim.client.start(thread_step(), id="r")
        await handle.result()
        for act in (handle.pause, handle.resume):
            with pytest.raises(outlast.RunConflictError):
                await act()

    Simulation(CODE).run(scenario)


@pytest.mark.parametrize("seed", range(20))
def test_a_resume_during_the_parking_is_not_lost(seed: int) -> None:
    """Whenever it comes while the run is being given back as paused, the run goes on."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        handle = await sim.client.start(two_steps(), id="r")
        await asyncio.sleep(1)
        await handle.pause()
        await asyncio.sleep(3.9 + sim.source("moment").uniform(0, 0.5))
        await handle.resume()
        await sim.closed("r")
        return await handle.result()

    faults = Faults(latency=0.1, lost_hint=0.5)
    assert Simulation(CODE, seed=seed, faults=faults).run(scenario) == "ab"


def test_an_effect_in_doubt_waits_too() -> None:
    """A paused run in doubt is paused; what an operator says of it is taken in when it is resumed."""

    @outlast.effect(name="lose", start_to_close_timeout=timedelta(seconds=1))
    async def lose() -> int:
        raise OSError("lost")

    @outlast.workflow(name="lose_once")
    async def lose_once() -> int:
        return await lose()

    async def scenario(sim: Simulation) -> int:
        await sim.start_worker()
        handle = await sim.client.start(lose_once(), id="r")
        await sim.until("r", lambda head: head.status is Status.BLOCKED)
        await handle.pause()
        await paused(sim)
        await handle.resolve("r:1", applied=5)
        await asyncio.sleep(10)
        assert (await paused(sim)).mail
        await handle.resume()
        return await handle.result()

    assert Simulation([*CODE, lose, lose_once]).run(scenario) == 5
