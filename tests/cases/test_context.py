"""Cases of docs/cases.md, section J: context variables, streams, processes."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from datetime import timedelta

import pytest

import outlast

TENANT = ContextVar("tenant", default="nobody")
GO = outlast.Signal("go")


@outlast.step
async def whose() -> str:
    """Return what an async body sees, and change it there."""
    seen = TENANT.get()
    TENANT.set("whose")
    return seen


@outlast.step
def whose_in_a_thread() -> str:
    """Return what a plain function sees in its thread, and change it there."""
    seen = TENANT.get()
    TENANT.set("whose_in_a_thread")
    return seen


@outlast.effect(idempotent=True)
async def whose_effect() -> str:
    """Return what an effect sees."""
    return TENANT.get()


@outlast.workflow
async def child() -> str:
    """Started by another run."""
    return await whose_in_a_thread()


@outlast.workflow
async def looks_twice() -> list[str]:
    """Look before and after a wait in which the run leaves memory."""
    first = [await whose(), await whose_in_a_thread(), await whose_effect()]
    await outlast.receive(GO)
    return [*first, await whose(), await whose_in_a_thread(), await outlast.run_child(child())]


@pytest.mark.parametrize("early", [True, False], ids=["started before", "started after"])
def test_case_151_attempts_see_the_context_of_the_worker(early: bool) -> None:
    """Of whoever opened the app, in every attempt: a run whose caller waits goes on as one does that was parked and taken up again."""

    async def main() -> list[str]:
        TENANT.set("opener")
        async with outlast.open("memory://", idle=timedelta(milliseconds=1)) as app:
            TENANT.set("caller")
            if early:
                handle = await app.signal_with_start(looks_twice(), GO, id="r")
            else:
                handle = await app.start(looks_twice(), id="r")
                while (await handle.status()).status != "waiting":
                    await asyncio.sleep(0)
                TENANT.set("sender")
                await handle.send(GO)
            return await handle.result()

    assert asyncio.run(main()) == ["opener"] * 6
