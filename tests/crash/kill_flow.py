"""Workflows whose process is killed at every write and call, and the driver that plays one of them to its end.

The receiver is a log that outlives every process and never takes two requests for one. All waits are at most 0.3 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import timedelta
from typing import Any

from crash_flow import Go, directory, note

import outlast
from outlast.app import App

RUN_ID = "x"
TIMEOUT = timedelta(seconds=0.3)
SETTLE = timedelta(seconds=0.2)
AGAIN = outlast.RetryPolicy(initial_interval=timedelta(seconds=0.1), maximum_attempts=3)
_POLL_SECONDS = 0.02


def act(body: str, label: str) -> str:
    """Change the world: a line in the receiver's log, whatever stands there."""
    note(body, label, key=outlast.idempotency_key(), number=outlast.attempt().number)
    return f"{body} {label}"


def acts(body: str) -> list[dict[str, Any]]:
    """Return what the receiver did, in order."""
    log = directory() / "receiver.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    return [one for one in map(json.loads, lines) if one["body"] == body]


# Steps


@outlast.step
async def read(label: str, number: int) -> int:
    """Give the number back."""
    return number


@outlast.step(retry=AGAIN)
async def flaky(label: str) -> int:
    """Fail the first time."""
    number = outlast.attempt().number
    if number < 2:
        raise RuntimeError("not yet")
    return number


@outlast.step
def crunch(label: str) -> int:
    """Work in a thread."""
    return len(label)


# One effect of each declaration


@outlast.effect(idempotent=True, start_to_close_timeout=TIMEOUT, settle=SETTLE)
async def charge(label: str) -> str:
    """Charge, at a receiver that is said to know keys."""
    return act("charge", label)


def find_booking(label: str) -> outlast.Applied[str] | outlast.NotApplied:
    """Look into the receiver's log."""
    found = [one for one in acts("book") if one["key"] == outlast.idempotency_key()]
    return outlast.Applied(f"book {label}") if found else outlast.NotApplied()


@outlast.effect(probe=find_booking, start_to_close_timeout=TIMEOUT, settle=SETTLE)
def book(label: str) -> str:
    """Book, at a receiver that can be asked; in a thread."""
    return act("book", label)


@outlast.effect(start_to_close_timeout=TIMEOUT, settle=SETTLE)
async def wire(label: str) -> str:
    """Wire money, at a receiver of which nothing is known."""
    return act("wire", label)


# Two that are undone, each by another one


@outlast.effect(idempotent=True, start_to_close_timeout=TIMEOUT, settle=SETTLE)
async def give_back(label: str) -> str:
    """Give back what was rented."""
    return act("give_back", label)


@outlast.effect(
    idempotent=True, start_to_close_timeout=TIMEOUT, settle=SETTLE, compensate=give_back
)
async def rent(label: str) -> str:
    """Rent, at a receiver that is said to know keys."""
    return act("rent", label)


def _look(body: str, label: str) -> outlast.Applied[str] | outlast.NotApplied:
    found = [one for one in acts(body) if one["key"] == outlast.idempotency_key()]
    return outlast.Applied(f"{body} {label}") if found else outlast.NotApplied()


def find_refund(label: str) -> outlast.Applied[str] | outlast.NotApplied:
    """Look into the receiver's log."""
    return _look("refund", label)


@outlast.effect(probe=find_refund, start_to_close_timeout=TIMEOUT, settle=SETTLE)
async def refund(label: str) -> str:
    """Refund, at a receiver that can be asked."""
    return act("refund", label)


def find_purchase(label: str) -> outlast.Applied[str] | outlast.NotApplied:
    """Look into the receiver's log."""
    return _look("buy", label)


@outlast.effect(
    probe=find_purchase, start_to_close_timeout=TIMEOUT, settle=SETTLE, compensate=refund
)
def buy(label: str) -> str:
    """Buy, at a receiver that can be asked; in a thread."""
    return act("buy", label)


# One workflow of each declaration, and one of everything


@outlast.workflow
async def charged(label: str) -> str:
    """An idempotent effect between two steps."""
    return f"{await read(label, 1)} {await charge(label)} {await read(label, 2)}"


@outlast.workflow
async def booked(label: str) -> str:
    """A probed effect between two steps."""
    return f"{await read(label, 1)} {await book(label)} {await read(label, 2)}"


@outlast.workflow
async def wired(label: str) -> str:
    """An effect with neither between two steps."""
    return f"{await read(label, 1)} {await wire(label)} {await read(label, 2)}"


@outlast.workflow
async def errand(label: str) -> str:
    """Parallel steps with a retry and a thread, a timer, a message, an approval, and all three effects."""
    numbers = await asyncio.gather(read(label, 1), flaky(label), crunch(label))
    await outlast.sleep(0.2)
    word = await outlast.receive(Go)
    grant = await outlast.approval(
        {"label": label},
        covers=[charge(label), book(label), wire(label)],
        role="payer",
        expires_in=timedelta(hours=1),
    )
    said = await asyncio.gather(charge(label), book(label))
    return f"{numbers} {word} {grant.by} {said} {await wire(label)}"


@outlast.workflow
async def toured(label: str) -> str:
    """Two effects that are undone; the workflow bears why."""
    try:
        async with outlast.saga():
            await rent(label)
            await buy(label)
            raise LookupError("closed")
    except LookupError as error:
        return f"{error} {await read(label, 1)}"


CHILD_ID = "kin"
LEFT_ID = "left"


@outlast.workflow
async def family(label: str) -> str:
    """A child that books, between two steps, and one that is ended with its parent."""
    before = await read(label, 1)
    await outlast.start_child(waits_for_ever(), id=LEFT_ID)
    said = await outlast.run_child(booked(label), id=CHILD_ID)
    return f"{before} {said} {await read(label, 2)}"


@outlast.workflow
async def waits_for_ever() -> str:
    """Wait for what nobody sends."""
    return await outlast.receive(Go)


# The driver


async def drive(app: App, name: str) -> None:
    """Start the run or find it, send what it waits for, approve what it asks; return at its end, or when it is left to an operator."""
    handle = await app.start(globals()[name]("x"), id=RUN_ID)
    if name == "errand":
        # The same message for every process that sends it; none when the run is over.
        with contextlib.suppress(outlast.RunConflictError):
            await handle.send(Go, "hello", id="go")
    ending = asyncio.ensure_future(handle.result())
    while not ending.done() and (await handle.status()).reason != "in doubt":
        for view in await app.approvals.list(run_id=RUN_ID):
            with contextlib.suppress(outlast.DecisionRefusedError):
                await app.approvals.approve(
                    RUN_ID, view.approval_id, seen_sha256=view.subject_sha256
                )
        await asyncio.wait({ending}, timeout=_POLL_SECONDS)
    if ending.done():
        ending.result()
    ending.cancel()
