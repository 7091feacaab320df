"""The public API as a type checker sees it: every line is correct, and every `assert_type` holds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_type
from uuid import UUID

import outlast


@dataclass
class Patch:
    """What is proposed."""

    text: str


@outlast.step
async def plan(finding: str, *, depth: int = 1) -> Patch:
    """Async, without arguments of the decorator."""
    return Patch(finding * depth)


@outlast.step
def count(text: str) -> int:
    """Plain, without arguments of the decorator."""
    return len(text)


@outlast.step(name="later", retry=outlast.RetryPolicy(maximum_attempts=3), raises=(ValueError,))
async def later(text: str) -> list[str]:
    """Async, with arguments of the decorator."""
    return [text]


@outlast.step(start_to_close_timeout=timedelta(seconds=5))
def sooner(text: str) -> bool:
    """Plain, with arguments of the decorator."""
    return bool(text)


@outlast.step(queue="gpu", schedule_to_start_timeout=timedelta(minutes=5))
async def elsewhere(text: str) -> bytes:
    """Async, in another worker."""
    return text.encode()


async def find(patch: Patch) -> outlast.Applied[int] | outlast.NotApplied | outlast.Unknown:
    """A probe."""
    return outlast.Applied(7)


@outlast.effect(probe=find, start_to_close_timeout=timedelta(seconds=30))
async def open_request(patch: Patch) -> int:
    """An async effect."""
    assert_type(outlast.idempotency_key(), str)
    assert_type(outlast.attempt(), outlast.Attempt)
    return 7


@outlast.effect(idempotent=True, key_on=("text",))
def send(text: str) -> None:
    """A plain effect."""


go = outlast.Signal("go", int)
said = outlast.Signal("said", Patch)


@outlast.workflow
async def fix(finding: str) -> int:
    """A workflow."""
    call = plan(finding, depth=2)
    assert_type(call, outlast.Call[Patch])
    patch = await call
    assert_type(patch, Patch)
    assert_type(await count("x"), int)
    assert_type(await later("x"), list[str])
    assert_type(await sooner("x"), bool)
    assert_type(await elsewhere("x"), bytes)
    assert_type(await send("x"), None)
    assert_type(await outlast.receive(go), int)
    assert_type(await outlast.receive(said, timeout=timedelta(1)), Patch)
    assert_type(outlast.now(), datetime)
    assert_type(outlast.uuid4(), UUID)
    assert_type(outlast.random().randint(1, 6), int)
    assert_type(outlast.info(), outlast.RunInfo)
    await outlast.sleep(5)
    await outlast.sleep(timedelta(hours=1))
    await outlast.wait_condition(lambda: True, timeout=timedelta(1))
    grant = await outlast.approval(
        patch,
        covers=[open_request(patch), send.where(text="x")],
        role="maintainer",
        expires_in=timedelta(hours=72),
    )
    assert_type(grant, outlast.Grant)
    number = await open_request(patch)
    assert_type(number, int)
    return number


@outlast.workflow(name="nothing")
async def nothing() -> None:
    """A workflow without arguments or result."""


async def outside() -> None:
    """A program that uses workflows."""
    async with outlast.open("memory://", workflows=[fix, nothing]) as app:
        assert_type(await app.run(fix("f"), id="run-1"), int)
        handle = await app.start(fix("f"), id="run-2")
        assert_type(handle, outlast.RunHandle[int])
        assert_type(await handle.result(), int)
        assert_type(await handle.status(), outlast.RunStatus)
        await handle.send(go, 5)
        await handle.send(said, Patch("x"))
        await handle.send("said", {"text": "x"})
        await handle.cancel()
        assert_type(await app.run(nothing(), id="run-3"), None)
