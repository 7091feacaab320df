"""Requests in whole flows: sagas, many at once answered in every order, children, generations, and more than anybody can look at."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import permutations
from typing import Any

import pytest
from asking_bench import asked, decide, entries

import outlast
from outlast.errors import WorkflowFailedError
from outlast.journal.entry import ApprovalRequested, EffectIntended
from outlast.store.change import RunKey, Status
from outlast.testing import Receiver, Simulation

DAY = timedelta(days=1)
BOSS = outlast.Approval("boss", expires_in=DAY)
receiver = Receiver()
done: list[str] = []


@outlast.effect(idempotent=True, start_to_close_timeout=timedelta(seconds=30))
async def give_back(what: str) -> None:
    done.append(f"gave back {what}")


@outlast.effect(
    idempotent=True,
    compensate=give_back,
    approval=BOSS,
    start_to_close_timeout=timedelta(seconds=30),
)
async def book(what: str) -> str:
    done.append(f"booked {what}")
    return what


@outlast.effect(idempotent=True, approval=BOSS)
async def pay(number: int) -> int:
    return receiver.apply_once(outlast.idempotency_key(), number)


@outlast.workflow
async def trip() -> list[str]:
    async with outlast.saga():
        return [await book("flight"), await book("hotel")]


@outlast.workflow
async def paying(count: int) -> list[Any]:
    async def one(number: int) -> Any:
        try:
            return await pay(number)
        except outlast.ApprovalDeniedError as no:
            return no.reason

    return await asyncio.gather(*map(one, range(count)))


@outlast.workflow
async def parent(close: str) -> Any:
    return await outlast.run_child(paying(1), id="kid", parent_close=close)  # type: ignore[arg-type]


@outlast.workflow
async def lasting(generation: int) -> list[int]:
    first = asyncio.create_task(pay(generation))
    if generation == 1:
        await asyncio.sleep(60)
        outlast.continue_as_new(lasting(2))
    return [await first]


CODE = [book, give_back, pay, trip, paying, parent, lasting]


@pytest.fixture(autouse=True)
def _clean() -> None:
    receiver.forget()
    done.clear()


def play(scenario: Any) -> Any:
    return Simulation(CODE).run(scenario)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_no_in_a_saga_undoes_what_was_approved_before(restarts: bool) -> None:
    """The booking that was approved is given back, nobody is asked about that, and the refused one is never made."""

    async def scenario(sim: Simulation) -> None:
        worker = await sim.start_worker()
        handle = await sim.client.start(trip(), id="r")
        await decide(sim, "ann")
        await asked(sim)
        if restarts:
            worker.kill()
            await sim.start_worker()
        await decide(sim, "ann", no="too dear")
        with pytest.raises(WorkflowFailedError, match="too dear"):
            await handle.result()
        assert (await handle.status()).status is Status.COMPENSATED
        assert done == ["booked flight", "gave back flight"]
        assert len(await entries(sim, ApprovalRequested)) == 2

    play(scenario)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_requests_at_once_are_answered_in_any_order(order: tuple[int, ...]) -> None:
    """Each answer reaches the call that it is about, a no its own alone; what is decided is pending no more."""

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker()
        handle = await sim.client.start(paying(3), id="r")
        found = await until(lambda: _pending(sim, 3))
        for place, number in enumerate(order):
            await _say(sim, found[number], yes=number != 1)
            assert len(await sim.client.approvals.list()) == 2 - place
        assert await handle.result() == [0, "not 1", 2]
        assert sorted(receiver.changes.values()) == [1, 1]

    play(scenario)


async def until(look: Callable[[], Awaitable[Any]]) -> Any:
    while not (found := await look()):
        await asyncio.sleep(0.1)
    return found


async def _pending(sim: Simulation, count: int) -> list[Any]:
    found = await sim.client.approvals.list(limit=100_000)
    return found if len(found) == count else []


async def _say(sim: Simulation, view: Any, *, yes: bool) -> None:
    verb = sim.client.approvals.approve if yes else sim.client.approvals.deny
    number = view.subject["covers"][0]["arguments"]["number"]
    await verb(
        view.run_id, view.approval_id, seen_sha256=view.subject_sha256, reason=f"not {number}"
    )


def test_a_child_asks_and_its_parent_is_told() -> None:
    """The request is the child's; with the answer the parent gets what came of it, whoever died meanwhile."""

    async def scenario(sim: Simulation) -> None:
        worker = await sim.start_worker()
        handle = await sim.client.start(parent("terminate"), id="r")
        (view,) = await until(lambda: _pending(sim, 1))
        assert view.run_id == "kid"
        worker.kill()
        await sim.start_worker()
        await _say(sim, view, yes=True)
        assert await handle.result() == [0]
        assert not await entries(sim, ApprovalRequested)

    play(scenario)


@pytest.mark.parametrize(("close", "asks"), [("terminate", 0), ("cancel", 0), ("abandon", 1)])
def test_the_end_of_a_parent_withdraws_what_its_child_asks(close: str, asks: int) -> None:
    """Nobody is asked for a run that has ended; a child that goes on alone goes on asking."""

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker()
        handle = await sim.client.start(parent(close), id="r")
        await until(lambda: _pending(sim, 1))
        await handle.terminate("no more")
        views = await until(lambda: _settled(sim, asks))
        assert [one.state for one in views] == ["pending" if asks else "withdrawn"]
        assert not receiver.changes

    play(scenario)


async def _settled(sim: Simulation, asks: int) -> list[Any]:
    found = await sim.client.approvals.list(pending=False)
    return found if len([one for one in found if one.state == "pending"]) == asks else []


def test_a_new_generation_asks_for_itself() -> None:
    """What the former one asked is withdrawn: a yes to it says nothing of the next one's call."""

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker()
        handle = await sim.client.start(lasting(1), id="r")
        (former,) = await until(lambda: _pending(sim, 1))
        await sim.until("r", lambda head: head.generation == 2)
        (view,) = await until(lambda: _pending(sim, 1))
        with pytest.raises(outlast.DecisionRefusedError):
            await sim.client.approvals.approve(
                "r", former.approval_id, seen_sha256=former.subject_sha256
            )
        await sim.client.approvals.approve("r", view.approval_id, seen_sha256=view.subject_sha256)
        assert await handle.result() == [2]
        (intent,) = await entries(sim, EffectIntended)
        assert intent.asked == (view.approval_id,)

    play(scenario)


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.soak)])
def test_many_wait_at_once(count: int) -> None:
    """Each is found page by page, decided once, and carried out once; none keeps a worker's memory."""

    async def scenario(sim: Simulation) -> None:
        worker = await sim.start_worker()
        for number in range(count):
            await sim.client.start(paying(1), id=f"r{number}")
        found = await until(lambda: _pending(sim, count))
        await until(lambda: _parked(sim, count))
        worker.kill()
        await sim.start_worker()
        listed: list[Any] = []
        while page := await sim.client.approvals.list(
            limit=97, after=listed[-1] if listed else None
        ):
            listed += page
        assert [one.run_id for one in listed] == [one.run_id for one in found]
        for view in listed:
            await _say(sim, view, yes=True)
        await until(lambda: _ended(sim, count))
        assert not await sim.client.approvals.list()
        assert list(receiver.changes.values()) == [1] * count

    play(scenario)


async def _parked(sim: Simulation, count: int) -> bool:
    runs = [await sim.store.head(RunKey("default", f"r{number}")) for number in range(count)]
    return all(run is not None and run.owner is None for run in runs)


async def _ended(sim: Simulation, count: int) -> bool:
    runs = [await sim.store.head(RunKey("default", f"r{number}")) for number in range(count)]
    return all(run is not None and run.status is Status.COMPLETED for run in runs)
