"""The guard in real frameworks: around the application, and on single routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from asgi_bench import policy
from fastapi import APIRouter, FastAPI, HTTPException
from fastapi import Request as FastRequest
from fastapi.routing import APIRoute
from litestar import Litestar
from litestar import Request as LiteRequest
from litestar import post as litestar_post
from litestar.exceptions import NotFoundException
from litestar.params import JSONBody
from pydantic import BaseModel
from requests_double import RequestsDouble
from starlette.applications import Starlette
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, StreamingResponse
from starlette.routing import Mount, Route

from outlast.http import IdempotencyMiddleware, PublishedPolicy, guarded, idempotent
from outlast.testing import SimulatedClock

KEY = {"idempotency-key": '"k-1"'}
POLICY = policy()


class Payment(BaseModel):
    amount: int


class World:
    """What the handlers of one test have done."""

    def __init__(self) -> None:
        self.store = RequestsDouble(SimulatedClock())
        self.count = 0

    def pay(self) -> int:
        """Act, and count it."""
        self.count += 1
        return self.count


def starlette(world: World, *, by_route: bool) -> Any:
    """Guarded as a whole, or by a route's list of middleware."""

    async def pay(request: Request) -> JSONResponse:
        amount = (await request.json())["amount"]
        if amount < 0:
            raise StarletteHTTPException(422, "negative")
        if amount == 0:
            world.pay()
            raise ZeroDivisionError
        assert guarded(request.scope) is not None
        return JSONResponse({"payment": world.pay()}, 201)

    each = [Middleware(idempotent(world.store, POLICY))]
    route = Route("/pay", pay, methods=["POST"], middleware=each if by_route else None)
    return Starlette(
        routes=[Mount("/v1", routes=[route]), Route("/policy", PublishedPolicy(POLICY))],
        middleware=[] if by_route else each,
    )


def starlette_routes(world: World) -> Any:
    """Guarded by a kind of route."""
    once = idempotent(world.store, POLICY).routes(Route)

    async def pay(request: Request) -> JSONResponse:
        amount = (await request.json())["amount"]
        if amount < 0:
            raise StarletteHTTPException(422, "negative")
        if amount == 0:
            world.pay()
            raise ZeroDivisionError
        return JSONResponse({"payment": world.pay()}, 201)

    page = Route("/policy", PublishedPolicy(POLICY))
    return Starlette(routes=[once("/v1/pay", pay, methods=["POST"]), page])


def fastapi(world: World, *, by_route: bool) -> Any:
    """Guarded as a whole, or by a kind of route, in a router that is included."""
    app = FastAPI()
    kind = idempotent(world.store, POLICY).routes(APIRoute) if by_route else APIRoute
    router = APIRouter(route_class=kind)

    @router.post("/pay", status_code=201)
    async def pay(payment: Payment, request: FastRequest) -> dict[str, int]:
        if payment.amount < 0:
            raise HTTPException(422, "negative")
        if payment.amount == 0:
            world.pay()
            raise ZeroDivisionError
        assert guarded(request.scope) is not None
        return {"payment": world.pay()}

    app.include_router(router, prefix="/v1")
    app.mount("/policy", PublishedPolicy(POLICY))
    if not by_route:
        app.add_middleware(IdempotencyMiddleware, client=world.store, policy=POLICY)
    return app


def litestar(world: World, *, by_route: bool) -> Any:
    """Guarded as a whole, or by a handler's list of middleware."""
    once = idempotent(world.store, POLICY)

    @litestar_post("/v1/pay", middleware=[once] if by_route else [])
    async def pay(data: JSONBody[Payment], request: LiteRequest[Any, Any, Any]) -> dict[str, int]:
        if data.amount < 0:
            raise NotFoundException("negative")
        if data.amount == 0:
            world.pay()
            raise ZeroDivisionError
        assert guarded(request.scope) is not None
        return {"payment": world.pay()}

    return Litestar([pay], middleware=[] if by_route else [once], openapi_config=None)


APPS: dict[str, Callable[[World], Any]] = {
    "starlette": lambda world: starlette(world, by_route=False),
    "starlette, one route": lambda world: starlette(world, by_route=True),
    "starlette, a kind of route": starlette_routes,
    "fastapi": lambda world: fastapi(world, by_route=False),
    "fastapi, a kind of route": lambda world: fastapi(world, by_route=True),
    "litestar": lambda world: litestar(world, by_route=False),
    "litestar, one route": lambda world: litestar(world, by_route=True),
}


EACH = pytest.mark.parametrize("name", APPS)


def exchange(app: Any, *requests: dict[str, Any], path: str = "/v1/pay") -> list[httpx.Response]:
    """Send requests one after the other. What the application raises reaches the server, which has somebody's answer already."""

    async def main() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return [await client.request("POST", path, **one) for one in requests]

    return asyncio.run(main())


def asked(amount: int, key: dict[str, str] = KEY) -> dict[str, Any]:
    """Return a request to pay."""
    return {"json": {"amount": amount}, "headers": key}


@EACH
def test_a_request_is_carried_out_once(name: str) -> None:
    """Whatever the framework and wherever the guard is: first answer again, 422 and 400 as problems."""
    world = World()
    first, again, other, missing = exchange(
        APPS[name](world), asked(5), asked(5), asked(6), asked(5, {})
    )
    assert (first.status_code, first.json()) == (201, {"payment": 1})
    assert (again.status_code, again.json()) == (201, {"payment": 1})
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["content-type"] == first.headers["content-type"]
    assert "idempotent-replayed" not in first.headers
    assert (other.status_code, missing.status_code) == (422, 400)
    assert other.headers["content-type"] == "application/problem+json"
    assert world.count == 1


@EACH
def test_a_refusal_leaves_the_key_free(name: str) -> None:
    """Of the framework's own validation and of the handler alike: a corrected payload is carried out."""
    world = World()
    shapeless = {"content": b"not json", "headers": {**KEY, "content-type": "application/json"}}
    requests = [asked(-5), asked(-5), asked(5), asked(5)]
    if "starlette" not in name:  # which validates nothing
        requests.insert(0, shapeless)
    refused, *_, paid, again = exchange(APPS[name](world), *requests)
    assert refused.status_code in {400, 404, 422}
    assert (paid.json(), again.json(), world.count) == ({"payment": 1}, {"payment": 1}, 1)


@EACH
def test_a_handler_that_raises_is_not_repeated(name: str) -> None:
    """The failure is the answer, the same for all who ask."""
    world = World()
    failed, again = exchange(APPS[name](world), asked(0), asked(0))
    assert (failed.status_code, again.status_code, world.count) == (500, 500, 1)
    assert failed.content == again.content
    assert again.headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize("name", [one for one in APPS if "kind" in one])
def test_a_method_that_the_route_does_not_have_is_not_guarded(name: str) -> None:
    """405, from the framework, and nothing is kept."""
    world = World()

    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(APPS[name](world))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.patch("/v1/pay", headers=KEY)

    assert asyncio.run(main()).status_code == 405
    assert not world.store.calls


@pytest.mark.parametrize("make", [starlette, fastapi])
def test_the_policy_can_be_read(make: Callable[..., Any]) -> None:
    """Mounted like any application."""

    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(make(World(), by_route=False))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get("/policy", follow_redirects=True)

    assert asyncio.run(main()).json() == POLICY.describe()


def test_answers_of_every_kind_are_recorded(tmp_path: Path) -> None:
    """Streams, files, and what middleware of the framework's own has been at."""
    (tmp_path / "receipt.txt").write_text("receipt " * 20_000)

    async def stream(request: Request) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            for number in range(5):
                yield f"{number} ".encode()

        return StreamingResponse(parts())

    async def file(request: Request) -> FileResponse:
        return FileResponse(tmp_path / "receipt.txt")

    async def signed(request: Request, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["x-signed"] = "yes"
        return response

    app = Starlette(
        routes=[Route("/stream", stream, methods=["POST"]), Route("/file", file, methods=["POST"])],
        middleware=[
            Middleware(idempotent(RequestsDouble(SimulatedClock()), POLICY)),
            Middleware(BaseHTTPMiddleware, dispatch=signed),
        ],
    )
    for path, key, body in (
        ("/stream", "s", b"0 1 2 3 4 "),
        ("/file", "f", b"receipt " * 20_000),
    ):
        one = {"headers": {"idempotency-key": f'"{key}"'}}
        first, again = exchange(app, one, one, path=path)
        assert first.content == again.content == body
        assert again.headers["x-signed"] == "yes"
        assert again.headers["idempotent-replayed"] == "true"
