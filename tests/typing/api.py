"""The public API as a type checker sees it: every line is correct, and every `assert_type` holds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, assert_type
from uuid import UUID

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from litestar import Litestar
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

import outlast
from outlast import Applied, NotApplied, Unknown
from outlast.http import (
    Answer,
    DoubtfulRequest,
    GuardedRequest,
    IdempotencyMiddleware,
    IdempotencyPolicy,
    PublishedPolicy,
    guarded,
    idempotent,
)
from outlast.http.asgi import Scope
from outlast.policy import ForeignTool


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


@outlast.effect(idempotent=True, tool=ForeignTool("files", "write_file", {}))
async def write_file(path: str) -> int:
    """An effect that calls a foreign tool."""
    return 7


@outlast.effect(idempotent=True, key_on=("text",))
def send(text: str) -> None:
    """A plain effect."""


go = outlast.Signal("go", int)
said = outlast.Signal("said", Patch)
counted = outlast.Query("counted", None, int)
drafted = outlast.Query("drafted", str, Patch)
stop = outlast.Signal("stop")
chosen = outlast.Signal("chosen", Literal["yes", "no"])
anything = outlast.Signal("anything", Any)
choose = outlast.Update("choose", Literal["yes", "no"], int)
pick = outlast.Update("pick", str, Literal["yes", "no"])
picked = outlast.Query("picked", None, Literal["yes", "no"])
liked = outlast.Query("liked", Literal["yes", "no"], int)
assert_type(go, outlast.Signal[int])
assert_type(stop, outlast.Signal[None])
add = outlast.Update("add", Patch, int)
shut = outlast.Update("shut")
tell = outlast.Update("tell", None, str)
take = outlast.Update("take", str)
assert_type(add, outlast.Update[Patch, int])
assert_type(shut, outlast.Update[None, None])
assert_type(tell, outlast.Update[None, str])
assert_type(take, outlast.Update[str, None])


async def add_patch(patch: Patch) -> int:
    """An async handler."""
    return await count(patch.text)


def check_patch(patch: Patch) -> None:
    """A validator."""


@outlast.workflow
async def fix(finding: str) -> int:
    """A workflow."""
    call = plan(finding, depth=2)
    assert_type(call, outlast.Call[Patch])
    patch = await call
    assert_type(patch, Patch)
    assert_type(counted, outlast.Query[None, int])
    assert_type(drafted, outlast.Query[str, Patch])
    outlast.on_query(counted, lambda _: 5)
    outlast.on_query(counted, lambda: 5)
    outlast.on_signal(outlast.Signal("bare"), lambda: None)
    outlast.on_update(outlast.Update("bare"), lambda: None, validator=lambda: None)
    outlast.on_query(drafted, lambda text: Patch(text + patch.text))
    outlast.publish("patch", patch)
    assert_type(await count("x"), int)
    assert_type(await later("x"), list[str])
    assert_type(await sooner("x"), bool)
    assert_type(await elsewhere("x"), bytes)
    assert_type(await send("x"), None)
    assert_type(await write_file("x"), int)
    assert_type(await outlast.receive(go), int)
    assert_type(await outlast.receive(said, timeout=timedelta(1)), Patch)
    assert_type(outlast.now(), datetime)
    assert_type(outlast.uuid4(), UUID)
    assert_type(outlast.random().randint(1, 6), int)
    assert_type(outlast.info(), outlast.RunInfo)
    outlast.on_signal(go, lambda number: None)
    outlast.on_update(add, add_patch, validator=check_patch)
    outlast.on_update(add, lambda patch: len(patch.text))
    outlast.on_update(add, lambda patch: count(patch.text))
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


@outlast.workflow(name="nothing", timeout=timedelta(days=1), durability="exit")
async def nothing() -> None:
    """A workflow without arguments or result."""


@outlast.workflow
async def kin(finding: str) -> int:
    """A workflow that deals with other runs."""
    assert_type(outlast.run_child(fix(finding)), outlast.Call[int])
    assert_type(await outlast.run_child(fix(finding), id="a", parent_close="abandon"), int)
    child = await outlast.start_child(fix(finding), parent_close="cancel")
    assert_type(child, outlast.ChildHandle[int])
    assert_type(child.id, str)
    assert_type(await child.result(), int)
    await child.send(go, 5)
    await child.send("said", {"text": "x"})
    await child.cancel("enough")
    other = outlast.run_handle("b", fix)
    assert_type(other, outlast.ExternalRun[int])
    assert_type(await other.result(), int)
    await other.send(said, Patch("x"))
    await outlast.run_handle("c").cancel()
    both = await asyncio.gather(outlast.run_child(fix("1")), child.result())
    assert_type(both, tuple[int, int])
    return sum(both)


async def outside() -> None:
    """A program that uses workflows."""
    async with outlast.open("memory://", workflows=[fix, nothing]) as app:
        assert_type(await app.run(fix("f"), id="run-1"), int)
        handle = await app.start(fix("f"), id="run-2", durability="async")
        assert_type(handle, outlast.RunHandle[int])
        assert_type(await handle.result(), int)
        assert_type(await handle.status(), outlast.RunStatus)
        await handle.send(go, 5)
        await handle.send(said, Patch("x"))
        await handle.send(stop)
        await handle.send("said", {"text": "x"})
        await handle.send(chosen, "yes")
        await handle.send(anything, {"text": "x"})
        assert_type(await handle.update(choose, "no"), int)
        await handle.update(pick, "x")
        await handle.query(picked)
        assert_type(await handle.query(liked, "yes"), int)
        by_id = app.handle("run-2")
        assert_type(by_id, outlast.RunHandle[Any])
        assert_type(await by_id.result(), Any)
        assert_type(app.handle("run-2", fix), outlast.RunHandle[int])
        assert_type(app.handle("run-2", workflow=fix), outlast.RunHandle[int])
        failed = await app.runs.list(statuses={"failed", "blocked"})
        assert_type(failed, list[outlast.RunStatus])
        await app.runs.list(statuses={one.status for one in failed})
        assert_type(await handle.query(counted), int)
        assert_type(await handle.query(drafted, "x", timeout=timedelta(seconds=2)), Patch)
        await handle.query("counted")
        await handle.query("drafted", "x")
        assert_type(await handle.published("patch", Patch), Patch | None)
        await handle.published("patch")
        assert_type(await handle.explain(), outlast.Explanation)
        await handle.send(go, 5, id="1", early=True)
        assert_type(await handle.update(add, Patch("x")), int)
        assert_type(await handle.update(shut), None)
        assert_type(await handle.update(tell), str)
        assert_type(await handle.update(take, "x", id="1"), None)
        await handle.update("add", {"text": "x"})
        handle = await app.signal_with_start(fix("f"), go, 5, id="run-4")
        assert_type(handle, outlast.RunHandle[int])
        assert_type(await app.update_with_start(fix("f"), add, Patch("x"), id="run-4"), int)
        assert_type(await app.update_with_start(fix("f"), tell, id="run-4"), str)
        await handle.pause("wait")
        await handle.resume()
        await handle.cancel()
        fork = await handle.fork(3, id="run-2b", reason="why", effects="same_key", generation=1)
        assert_type(fork, outlast.RunHandle[int])
        assert_type(await fork.retry(reason="why"), outlast.RunHandle[int])
        await handle.fork(outcome=("r:1", {"text": "x"}), id="run-2c", reason="why")
        assert_type(await app.run(nothing(), id="run-3", timeout=timedelta(1)), None)


async def find_payment(request: DoubtfulRequest) -> Applied[Answer] | NotApplied | Unknown:
    """A probe of requests."""
    assert_type(request.body, bytes)
    return Applied(Answer.json(201, {"payment": 1})) if request.request_id else NotApplied()


async def who(scope: Scope) -> str:
    """A principal that is looked up."""
    return str(scope["user"])


def client_of(scope: Scope) -> outlast.Client:
    """Opened when the application starts."""
    client: outlast.Client = scope["state"]["outlast"]
    return client


def serve(app: outlast.App) -> None:
    """Applications whose requests happen once."""
    policy = IdempotencyPolicy(principal=who, tenant=lambda scope: "", on_doubt=find_payment)
    once = idempotent(client_of, policy)
    page = Route("/policy", PublishedPolicy(policy))
    starlette = Starlette(routes=[page], middleware=[Middleware(once)])
    starlette.add_middleware(IdempotencyMiddleware, client=app, policy=policy)
    assert_type(once.routes(APIRoute), type[APIRoute])
    FastAPI().include_router(APIRouter(route_class=once.routes(APIRoute)))
    Litestar(middleware=[once])
    idempotent(app, policy)(starlette)
    found = guarded({"type": "http"})
    assert_type(found, GuardedRequest | None)
