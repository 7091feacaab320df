"""The time that a whole run may take: by the store's clock, from its start on, whoever lives meanwhile."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

import outlast
from outlast.client import RunDetail
from outlast.journal.entry import (
    CancelRequested,
    EffectCompleted,
    Entry,
    Failed,
    RunTimedOut,
    from_row,
)
from outlast.store.change import RunHead, RunKey, Status
from outlast.testing import Receiver, Simulation

RUN = RunKey("default", "r")
MINUTE = timedelta(minutes=1)
TEN_YEARS = timedelta(days=3650)
TEXT = "the run was not done within 0:01:00"
began: list[str] = []
receiver = Receiver()
go = outlast.Signal("go", str)


@outlast.step
async def note(name: str) -> str:
    began.append(name)
    return name


@outlast.step
async def slow(seconds: float) -> str:
    began.append("slow")
    await asyncio.sleep(seconds)
    return "slow"


@outlast.effect(idempotent=True)
async def pay(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return str(receiver.apply_once(outlast.idempotency_key(), "paid"))


@outlast.effect(start_to_close_timeout=timedelta(seconds=1))
async def lose() -> str:
    raise OSError("lost")


@outlast.workflow
async def waits() -> str:
    return await outlast.receive(go)


@outlast.workflow(timeout=MINUTE)
async def limited() -> str:
    return await outlast.receive(go)


@outlast.workflow
async def cleans_up() -> str:
    try:
        return await outlast.receive(go)
    finally:
        await note("clean up")
        await outlast.sleep(1200)
        await note("cleaned up")


@outlast.workflow
async def swallows() -> str:
    try:
        return await outlast.receive(go)
    except asyncio.CancelledError as why:
        return f"swallowed: {why}"


@outlast.workflow
async def steps() -> str:
    return await note("a") + await slow(3600)


@outlast.workflow
async def pays() -> str:
    return await pay(120)


@outlast.workflow
async def leaves_a_payment() -> str:
    asyncio.create_task(pay(120))
    return await note("left")


@outlast.workflow
async def doubts() -> str:
    return await lose()


@outlast.workflow
async def minds(minutes: float | None, handle: bool) -> str:
    time = None if minutes is None else timedelta(minutes=minutes)
    try:
        if handle:
            child = await outlast.start_child(limited(), timeout=time)
            return await child.result()
        return await outlast.run_child(limited(), timeout=time)
    except outlast.WorkflowFailedError as error:
        return str(error.__cause__)


CODE = [
    *(note, slow, pay, lose, minds),
    *(leaves_a_payment, waits, limited, cleans_up, swallows, steps, pays, doubts),
]


@pytest.fixture(autouse=True)
def _clean() -> None:
    began.clear()
    receiver.forget()


async def entries_of(sim: Simulation) -> list[Entry]:
    return [from_row(one.row) for one in await sim.store.journal(RUN)]


async def timed_out_at(sim: Simulation) -> datetime:
    """Return when the run was told."""
    (at,) = [
        one.at for one in await sim.store.journal(RUN) if isinstance(from_row(one.row), RunTimedOut)
    ]
    return at


@pytest.mark.parametrize("parks", [False, True], ids=["in memory", "parked"])
@pytest.mark.parametrize("declared", [False, True], ids=["by its start", "by its workflow"])
def test_a_run_that_is_not_done_in_time_fails(parks: bool, declared: bool) -> None:
    """With a TimeoutError that says the time, at that time; the row of a parked run says when to wake it."""

    async def scenario(sim: Simulation) -> tuple[RunHead, timedelta]:
        await sim.start_worker()
        began = sim.clock.now()
        call = limited() if declared else (waits() if parks else steps())
        handle = await sim.client.start(call, id="r", timeout=None if declared else MINUTE)
        if parks:
            head = await sim.until("r", lambda head: head.status is Status.WAITING)
            assert head.wake_at is not None
            assert head.wake_at - began == MINUTE
        with pytest.raises(outlast.WorkflowFailedError, match=TEXT) as caught:
            await handle.result()
        assert isinstance(caught.value.__cause__, TimeoutError)
        return await sim.closed("r"), await timed_out_at(sim) - began

    head, after = Simulation(CODE).run(scenario)
    assert (head.status, head.reason) == (Status.FAILED, f"TimeoutError: {TEXT}")
    assert timedelta(0) <= after - MINUTE < timedelta(seconds=1)


def test_a_start_says_otherwise() -> None:
    """Longer or shorter than its workflow says; the run that is there already keeps its own."""

    async def scenario(sim: Simulation) -> timedelta:
        await sim.start_worker()
        began = sim.clock.now()
        await sim.client.start(limited(), id="r", timeout=3 * MINUTE)
        await sim.client.start(limited(), id="r", timeout=timedelta(seconds=1))
        await sim.closed("r")
        return await timed_out_at(sim) - began

    assert Simulation(CODE).run(scenario) >= 3 * MINUTE


@pytest.mark.parametrize("handle", [False, True], ids=["run_child", "start_child"])
@pytest.mark.parametrize(("minutes", "expected"), [(None, 1), (3, 3), (0.5, 0.5)])
def test_a_child_has_the_time_that_it_declares_unless_its_start_says_otherwise(
    minutes: float | None, expected: float, handle: bool
) -> None:
    """Its parent hears the TimeoutError, at that time."""

    async def scenario(sim: Simulation) -> tuple[str, timedelta]:
        await sim.start_worker()
        began = sim.clock.now()
        handle_ = await sim.client.start(minds(minutes, handle), id="r")
        return await handle_.result(), sim.clock.now() - began

    told, after = Simulation(CODE).run(scenario)
    time = timedelta(minutes=expected)
    assert told == f"the run was not done within {time}"
    assert time <= after < time + timedelta(seconds=10)


def test_what_is_started_with_a_message_has_a_time_too() -> None:
    """Where the call starts a run; one that is there keeps its own."""

    async def scenario(sim: Simulation) -> list[str]:
        await sim.start_worker()
        told: list[str] = []
        for run_id, change in [("a", "signal"), ("b", "update")]:
            if change == "signal":
                handle = await sim.client.signal_with_start(
                    waits(), "other", id=run_id, timeout=MINUTE
                )
            else:
                with pytest.raises(outlast.UpdateRejectedError):
                    await sim.client.update_with_start(waits(), "other", id=run_id, timeout=MINUTE)
                handle = sim.client.handle(run_id)
            with pytest.raises(outlast.WorkflowFailedError) as caught:
                await handle.result()
            told.append(str(caught.value.__cause__))
        return told

    assert Simulation(CODE).run(scenario) == [TEXT, TEXT]


def test_a_run_that_is_done_in_time_knows_nothing_of_it() -> None:
    """No entry, and no row that says when to wake."""

    async def scenario(sim: Simulation) -> tuple[RunHead, list[Entry]]:
        await sim.start_worker()
        handle = await sim.client.start(limited(), id="r")
        await handle.send(go, "done")
        assert await handle.result() == "done"
        await asyncio.sleep(300)
        return await sim.closed("r"), await entries_of(sim)

    head, entries = Simulation(CODE).run(scenario)
    assert (head.status, head.wake_at) == (Status.COMPLETED, None)
    assert not any(isinstance(one, RunTimedOut) for one in entries)


def test_the_clean_up_runs_and_is_not_cut_off_again() -> None:
    """Steps and timers in it are durable, also across the death of its worker, and the run fails when it is over."""

    async def scenario(sim: Simulation) -> Status:
        first = await sim.start_worker()
        await sim.client.start(cleans_up(), id="r", timeout=MINUTE)
        await asyncio.sleep(300)
        first.kill()
        await sim.start_worker()
        return (await sim.closed("r")).status

    assert Simulation(CODE).run(scenario) is Status.FAILED
    assert began == ["clean up", "cleaned up"]


def test_a_body_that_swallows_it_ends_as_it_ends() -> None:
    """As with any cancel; it has seen why."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        handle = await sim.client.start(swallows(), id="r", timeout=MINUTE)
        return await handle.result()

    assert Simulation(CODE).run(scenario) == f"swallowed: {TEXT}"


def test_the_time_runs_while_no_worker_lives() -> None:
    """It counts from the start: a run that was never taken up begins no attempt after that."""

    async def scenario(sim: Simulation) -> list[Entry]:
        handle = await sim.client.start(steps(), id="r", timeout=MINUTE)
        await asyncio.sleep(61)
        await sim.start_worker()
        with pytest.raises(outlast.WorkflowFailedError, match=TEXT):
            await handle.result()
        return await entries_of(sim)

    entries = Simulation(CODE).run(scenario)
    assert began == []
    assert [type(one).__name__ for one in entries] == ["Started", "Taken", "RunTimedOut", "Failed"]


def test_it_is_told_once_by_whoever_comes_after_an_outage() -> None:
    """In the order of the store's time: a message that came before the time was over is taken in before it."""

    async def scenario(sim: Simulation) -> list[Entry]:
        first = await sim.start_worker()
        handle = await sim.client.start(cleans_up(), id="r", timeout=MINUTE)
        await asyncio.sleep(5)
        first.kill()
        await handle.send("early", "early")
        await asyncio.sleep(600)
        await handle.send("late", "late")
        await sim.start_worker()
        await sim.closed("r")
        return await entries_of(sim)

    names = [
        getattr(one, "name", "") or type(one).__name__ for one in Simulation(CODE).run(scenario)
    ]
    assert names[2:5] == ["early", "RunTimedOut", "late"]
    assert names.count("RunTimedOut") == 1


@pytest.mark.parametrize("kill", [False, True], ids=["alive", "killed"])
def test_a_clock_that_was_ahead_once_gives_no_run_ten_years(kill: bool) -> None:
    """Started while the clock was ten years ahead, it has its minute; a death in between may cost that once more."""

    async def scenario(sim: Simulation) -> float:
        first = await sim.start_worker()
        sim.clock.jump(TEN_YEARS)
        await sim.client.start(waits(), id="r", timeout=MINUTE)
        await sim.until("r", lambda head: head.next_seq > 1)
        sim.clock.jump(-TEN_YEARS)
        since = sim.clock.monotonic()
        await asyncio.sleep(30)
        if kill:
            first.kill()
            await sim.start_worker()
        await sim.closed("r")
        return sim.clock.monotonic() - since

    took = Simulation(CODE, longest=timedelta(hours=5)).run(scenario)
    assert 59 <= took <= (120 if kill else 60) + 20


def test_a_clock_that_is_set_back_lengthens_it_by_no_more_than_itself() -> None:
    """An hour back in the middle of its minute: it ends within another minute, not after an hour."""

    async def scenario(sim: Simulation) -> float:
        await sim.start_worker()
        since = sim.clock.monotonic()
        await sim.client.start(waits(), id="r", timeout=MINUTE)
        await asyncio.sleep(30)
        sim.clock.jump(timedelta(hours=-1))
        await sim.closed("r")
        return sim.clock.monotonic() - since

    assert 60 <= Simulation(CODE).run(scenario) <= 120


def test_an_effect_that_was_intended_is_settled_first() -> None:
    """Its outcome is recorded, then the run fails."""

    async def scenario(sim: Simulation) -> list[Entry]:
        await sim.start_worker()
        await sim.client.start(pays(), id="r", timeout=MINUTE)
        await sim.closed("r")
        return await entries_of(sim)

    kinds = [type(one) for one in Simulation(CODE).run(scenario)]
    assert kinds[-3:] == [RunTimedOut, EffectCompleted, Failed]
    assert receiver.total == 1


def test_a_body_that_has_returned_in_time_is_done() -> None:
    """What it has left is waited for, however long that takes; the run is not told that its time is over."""

    async def scenario(sim: Simulation) -> tuple[str, list[Entry]]:
        await sim.start_worker()
        handle = await sim.client.start(leaves_a_payment(), id="r", timeout=MINUTE)
        return await handle.result(), await entries_of(sim)

    result, entries = Simulation(CODE).run(scenario)
    assert result == "left"
    assert not any(isinstance(one, RunTimedOut) for one in entries)
    assert receiver.total == 1


def test_a_run_in_doubt_is_told_and_waits_for_its_operator() -> None:
    """Blocked runs have a time too; the doubt is settled before the end."""

    async def scenario(sim: Simulation) -> tuple[datetime | None, RunHead, list[Entry]]:
        await sim.start_worker()
        handle = await sim.client.start(doubts(), id="r", timeout=MINUTE)
        first = await sim.until("r", lambda head: head.status is Status.BLOCKED)
        await asyncio.sleep(90)
        second = await sim.until("r", lambda head: head.status is Status.BLOCKED)
        await handle.resolve("r:1", not_applied=True)
        await asyncio.sleep(30)
        await handle.resolve("r:1", applied="it did")
        await sim.closed("r")
        return first.wake_at, second, await entries_of(sim)

    wake_at, second, entries = Simulation(CODE).run(scenario)
    assert wake_at is not None
    assert (second.reason, second.wake_at) == ("in doubt", None)
    assert isinstance(entries[-1], Failed)
    assert entries[-1].failure.message == TEXT


def test_a_paused_run_is_told_when_it_is_resumed() -> None:
    """A pause begins nothing, no clean-up either; then the time is over at once."""

    async def scenario(sim: Simulation) -> tuple[RunDetail, RunDetail]:
        await sim.start_worker()
        handle = await sim.client.start(cleans_up(), id="r", timeout=MINUTE)
        await handle.pause("wait")
        head = await sim.until("r", lambda head: head.status is Status.PAUSED)
        assert head.wake_at is None
        await asyncio.sleep(600)
        assert began == []
        before = await handle.detail()
        await handle.resume()
        await sim.until("r", lambda head: head.next_seq > 4)
        after = await handle.detail()
        await sim.closed("r")
        return before, after

    before, after = Simulation(CODE).run(scenario)
    assert (before.paused_by, after.paused_by) == ("by tester: wait", "")
    assert before.deadline == before.status.created_at + MINUTE
    assert before.timed_out_at is None
    assert after.timed_out_at is not None
    assert began == ["clean up", "cleaned up"]


@pytest.mark.parametrize("first", ["cancel", "timeout"])
def test_of_a_cancel_and_the_end_of_the_time_the_first_says_how_it_ended(first: str) -> None:
    """Whoever cleans up for too long is cancelled again by the other one; both are in the journal."""

    async def scenario(sim: Simulation) -> tuple[Status, list[Entry]]:
        await sim.start_worker()
        handle = await sim.client.start(cleans_up(), id="r", timeout=MINUTE)
        await asyncio.sleep(5 if first == "cancel" else 65)
        await handle.cancel()
        return (await sim.closed("r")).status, await entries_of(sim)

    status, entries = Simulation(CODE).run(scenario)
    kinds = [type(one) for one in entries if isinstance(one, CancelRequested | RunTimedOut)]
    assert kinds == (
        [CancelRequested, RunTimedOut] if first == "cancel" else [RunTimedOut, CancelRequested]
    )
    assert status is (Status.CANCELLED if first == "cancel" else Status.FAILED)
    assert began == ["clean up"]


@pytest.mark.parametrize("wrong", [timedelta(0), timedelta(seconds=-1), 60, timedelta(days=40_000)])
def test_what_is_no_time_is_refused_where_it_is_said(wrong: Any) -> None:
    """At the declaration and at the start, in words, and nothing is written."""

    async def flow() -> None:
        pass

    with pytest.raises(outlast.DefinitionError, match="workflow flow has timeout="):
        outlast.workflow(timeout=wrong)(flow)

    async def scenario(sim: Simulation) -> None:
        with pytest.raises(outlast.DefinitionError, match="the start of waits has timeout="):
            await sim.client.start(waits(), id="r", timeout=wrong)
        assert await sim.store.head(RUN) is None

    Simulation(CODE).run(scenario)
