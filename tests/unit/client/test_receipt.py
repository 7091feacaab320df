"""Receipts as a client draws them: from the store, of any generation, of whatever became of the request."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

import outlast
from outlast.approvals.proof import prove
from outlast.client import Receipt
from outlast.errors import ReceiptError
from outlast.testing import Receiver, Simulation

receiver = Receiver()
SOON = timedelta(seconds=50)


@outlast.effect(idempotent=True)
async def pay(amount: int) -> int:
    return receiver.apply_once(outlast.idempotency_key(), amount)


@outlast.workflow
async def bill(amount: int) -> int:
    await outlast.approval("pay", covers=[pay.where(amount=amount)], role="boss", expires_in=SOON)
    return await pay(amount)


@outlast.workflow
async def bills(amount: int) -> int:
    await outlast.approval("pay", covers=[pay(amount)], role="boss", expires_in=SOON)
    await pay(amount)
    if amount:
        outlast.continue_as_new(bills(amount - 1))
    return await outlast.approval("more", role="boss", expires_in=SOON) and 0


CODE = [pay, bill, bills]


@pytest.fixture(autouse=True)
def _clean() -> None:
    receiver.forget()


async def decide(sim: Simulation, *, yes: bool = True) -> str:
    """Decide the one request of the run when it is there; return its id."""
    while not (views := await sim.client.approvals.list()):
        await asyncio.sleep(0.1)
    (view,) = views
    act = sim.client.approvals.approve if yes else sim.client.approvals.deny
    await act("r", view.approval_id, seen_sha256=view.subject_sha256, reason="so be it")
    return view.approval_id


def sound(found: Receipt) -> bool:
    """Whether nothing in a receipt is broken."""
    return all(one.verdict != "broken" for one in prove(found))


def play(scenario: Callable[[Simulation], Awaitable[Receipt]]) -> Receipt:
    """Return the receipt that a scenario ends with."""
    return Simulation(CODE).run(scenario)


def test_receipt_of_what_was_approved_and_done() -> None:
    """Everything that the journal knows of it, and it holds."""

    async def scenario(sim: Simulation) -> Receipt:
        await sim.start_worker()
        await sim.client.start(bill(5), id="r")
        await decide(sim)
        await sim.closed("r")
        return await sim.client.approvals.receipt("r", with_results=True)

    found = play(scenario)
    assert (found.workflow, found.state, found.tenant) == ("bill", "approved", "default")
    assert [(one.said, one.reason) for one in found.request.words] == [("yes", "so be it")]
    assert [(one.effect, one.outcome.result) for one in found.acts] == [("pay", "5")]
    assert sound(found)


@pytest.mark.parametrize("ending", ["pending", "denied", "expired", "withdrawn"])
def test_receipt_of_what_was_not_approved(ending: str) -> None:
    """It says how it ended; a run that was terminated has withdrawn what it asked, which no entry says."""

    async def scenario(sim: Simulation) -> Receipt:
        await sim.start_worker()
        handle = await sim.client.start(bill(5), id="r")
        while not await sim.client.approvals.list():
            await asyncio.sleep(0.1)
        if ending == "denied":
            await decide(sim, yes=False)
        elif ending == "withdrawn":
            await handle.terminate("no longer needed")
        if ending != "pending":
            await sim.closed("r")
        return await sim.client.approvals.receipt("r")

    found = play(scenario)
    assert (found.state, found.acts) == (ending, ())
    assert sound(found)


def test_receipt_of_an_earlier_generation() -> None:
    """Named by its id it is found where it was made; without an id it is clear only in the present one."""

    async def scenario(sim: Simulation) -> Receipt:
        await sim.start_worker()
        await sim.client.start(bills(1), id="r")
        first = await decide(sim)
        second = await decide(sim)
        assert first != second
        with pytest.raises(ReceiptError, match="2 things") as caught:
            while True:
                await sim.client.approvals.receipt("r")
                await asyncio.sleep(0.1)
        assert caught.value.reason == "ambiguous"
        with pytest.raises(ReceiptError) as caught:
            await sim.client.approvals.receipt("r", "9~r:9")
        assert caught.value.reason == "unknown"
        return await sim.client.approvals.receipt("r", first)

    found = play(scenario)
    assert (found.generation, found.state) == (1, "approved")
    assert len(found.acts) == 1
    assert sound(found)


def test_run_that_is_not_there() -> None:
    """That is another error than a request that is not there."""

    async def scenario(sim: Simulation) -> Receipt:
        return await sim.client.approvals.receipt("r")

    with pytest.raises(outlast.RunNotFoundError):
        play(scenario)
