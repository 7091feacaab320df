"""Laws of crash points where people are asked: wherever a process is killed, nobody is asked twice, and what begins was approved."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

import outlast
from outlast.client import Client
from outlast.client.view import ApprovalView
from outlast.journal.entry import ApprovalDecided, ApprovalRequested, ApprovalVoted, EffectIntended
from outlast.testing import Receiver, Trial, Workload, every_crash, undisturbed
from outlast.testing.thread import SeededRandom

receiver = Receiver()
SOON = timedelta(seconds=8)
HOUR = timedelta(hours=1)
price = {"book": 5}


@outlast.step
async def price_of(name: str) -> int:
    return price[name]


@outlast.effect(
    idempotent=True,
    approval=outlast.Approval(
        "boss", expires_in=HOUR, quorum=2, edits="yes", preconditions={"price": price_of}
    ),
)
async def buy(name: str, amount: int) -> str:
    price[name] += 1
    return receiver.apply_once(outlast.idempotency_key(), f"{amount} {name}")


@outlast.effect(
    idempotent=True,
    approval=outlast.Approval(
        "boss", expires_in=SOON, use_within=HOUR, escalate=(outlast.Rung("chief", SOON),)
    ),
)
async def sell(name: str) -> str:
    return receiver.apply_once(outlast.idempotency_key(), f"sold {name}")


@outlast.effect(idempotent=True, approval=outlast.Approval("boss", expires_in=HOUR, sticky="run"))
async def stock(name: str, amount: int) -> str:
    return receiver.apply_once(outlast.idempotency_key(), f"{amount} {name}")


@outlast.workflow
async def restocking() -> list[str]:
    return [await stock("book", amount) for amount in (1, 2, 3)]


@outlast.workflow
async def purchase() -> str:
    try:
        return await buy("book", 9)
    except outlast.OutlastError as error:
        return error.code


@outlast.workflow
async def sale() -> str:
    try:
        return await sell("book")
    except outlast.OutlastError as error:
        return error.code


def acting_as(client: Client, who: str) -> Client:
    """Return the client of somebody."""
    return Client(client.store, random=SeededRandom(who), principal=who)


async def asked(client: Client, role: str, count: int) -> ApprovalView:
    """Wait for the request of a run that comes after so many others, and is asked of a role."""
    while True:
        views = await client.approvals.list(pending=False)
        if len(views) > count and views[count].role == role:
            return views[count]
        await asyncio.sleep(0.5)


async def approve(client: Client, who: str, view: ApprovalView) -> None:
    approvals = acting_as(client, who).approvals
    await approvals.approve(view.run_id, view.approval_id, seen_sha256=view.subject_sha256)


async def edit_and_approve(client: Client) -> None:
    """Let ann want less of it, and bob and cid say yes to that."""
    view = await asked(client, "boss", 0)
    await acting_as(client, "ann").approvals.edit(
        "run", view.approval_id, seen_sha256=view.subject_sha256, arguments={0: {"amount": 2}}
    )
    view = await asked(client, "boss", 1)
    with pytest.raises(outlast.DecisionRefusedError):
        await approve(client, "ann", view)
    await approve(client, "bob", view)
    await asyncio.sleep(0.5)
    await approve(client, "cid", view)


async def edit_and_raise_the_price(client: Client) -> None:
    """Do the same, and let the fact on which the yes rests be another one before the last vote."""
    view = await asked(client, "boss", 0)
    await acting_as(client, "ann").approvals.edit(
        "run", view.approval_id, seen_sha256=view.subject_sha256, arguments={0: {"amount": 2}}
    )
    view = await asked(client, "boss", 1)
    await approve(client, "bob", view)
    price["book"] = 50
    await approve(client, "cid", view)


async def let_the_chief_approve(client: Client) -> None:
    await approve(client, "dan", await asked(client, "chief", 1))


async def say_nothing(client: Client) -> None:
    await asyncio.sleep(0)


FLOWS: dict[str, tuple[Any, Callable[[Client], Awaitable[None]], str, list[str]]] = {
    "edited": (purchase, edit_and_approve, "2 book", ["boss", "boss"]),
    "not so any more": (
        purchase,
        edit_and_raise_the_price,
        "approval_precondition",
        ["boss", "boss"],
    ),
    "escalated": (sale, let_the_chief_approve, "sold book", ["boss", "chief"]),
    "expired": (sale, say_nothing, "approval_expired", ["boss", "chief"]),
}


def workload(name: str) -> Workload[str]:
    workflow, meanwhile, _, _ = FLOWS[name]
    return Workload(
        lambda: workflow(),
        receiver=receiver,
        meanwhile=meanwhile,
        definitions=[workflow, buy, sell, price_of],
        reset=lambda: price.update(book=5),
    )


def assert_as_approved(trial: Trial[str], result: str, roles: list[str]) -> None:
    """It ended as it should, asked whom it should, and did at most what was approved."""
    entries = [one.entry for one in trial.journal]
    requests = [one for one in entries if isinstance(one, ApprovalRequested)]
    intents = [one for one in entries if isinstance(one, EffectIntended)]
    assert trial.result == result, trial
    assert [one.role for one in requests] == roles, trial
    happened = [value for _, value in receiver.log]
    if not intents:
        assert not happened, trial
        return
    (intent,) = intents
    assert happened == [result], trial
    assert intent.asked == (requests[-1].approval_id,), trial
    assert intent.action_sha256 == requests[-1].covers[0].action_sha256, trial
    (end,) = [one for one in entries if isinstance(one, ApprovalDecided)]
    votes = [one for one in entries if isinstance(one, ApprovalVoted)]
    voters = {*(one.by for one in votes), end.by}
    assert voters == ({"bob", "cid"} if intent.name == "buy" else {"dan"}), trial
    if intent.name == "buy":
        assert msgspec.json.decode(intent.requested)["amount"] == 9
        assert msgspec.json.decode(intent.effective)["amount"] == 2


@pytest.mark.parametrize("name", FLOWS)
def test_every_crash_leads_to_what_was_approved(name: str) -> None:
    """Before and after each commit and each call of a body, with people who say what they say while nobody lives."""
    _, _, result, roles = FLOWS[name]
    work = workload(name)
    trials = 0
    for trial in [undisturbed(work), *every_crash(work)]:
        assert_as_approved(trial, result, roles)
        trials += 1
    assert trials > 10


async def approve_for_one_more(client: Client) -> None:
    """Let the first yes stick for one more call, and say yes to the third."""
    first = await asked(client, "boss", 0)
    await acting_as(client, "ann").approvals.approve(
        "run",
        first.approval_id,
        seen_sha256=first.subject_sha256,
        sticky=outlast.Sticky("run", same=(), uses=1),
    )
    await approve(client, "bob", await asked(client, "boss", 2))


def test_every_crash_leads_to_what_was_answered_once() -> None:
    """What sticks answers the second call, with one use, and the third one asks; wherever somebody dies."""
    work = Workload(
        lambda: restocking(),
        receiver=receiver,
        meanwhile=approve_for_one_more,
        definitions=[restocking, stock],
    )
    trials = 0
    for trial in [undisturbed(work), *every_crash(work)]:
        entries = [one.entry for one in trial.journal]
        requests = [one for one in entries if isinstance(one, ApprovalRequested)]
        assert trial.result == ["1 book", "2 book", "3 book"], trial
        assert [len(one.votes) for one in requests] == [0, 1, 0], trial
        assert [one.by for one in entries if isinstance(one, ApprovalDecided)] == [
            "ann",
            "ann",
            "bob",
        ], trial
        assert [value for _, value in receiver.log] == ["1 book", "2 book", "3 book"], trial
        trials += 1
    assert trials > 10


@pytest.mark.soak
@pytest.mark.parametrize("name", FLOWS)
def test_every_crash_in_every_recovery_leads_there_too(name: str) -> None:
    """Two crashes in a row."""
    _, _, result, roles = FLOWS[name]
    for trial in every_crash(workload(name), crashes=2):
        assert_as_approved(trial, result, roles)
