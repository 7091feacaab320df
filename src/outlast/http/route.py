"""The guard for single routes: by a decorator, by a framework's list of middleware, or by a class of routes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

from outlast.client import Client
from outlast.http.asgi import ASGIApp, Receive, Scope, Send
from outlast.http.middleware import IdempotencyMiddleware
from outlast.http.policy import IdempotencyPolicy

Route = TypeVar("Route")


class Idempotent:
    """A guard that is not yet around anything; `idempotent()` returns it.

    Example:
        ```python
        import outlast
        from outlast.http import Idempotent, IdempotencyPolicy, idempotent

        def once(client: outlast.Client) -> Idempotent:
            return idempotent(client, IdempotencyPolicy(principal=lambda scope: "all"))
        ```
    """

    def __init__(
        self, client: Client | Callable[[Scope], Client], policy: IdempotencyPolicy
    ) -> None:
        self._client = client
        self._policy = policy

    def __call__(self, app: ASGIApp) -> IdempotencyMiddleware:
        """Return an ASGI application, guarded."""
        return IdempotencyMiddleware(app, self._client, self._policy)

    def routes(self, route: type[Route]) -> type[Route]:
        """Return a kind of route whose handlers are guarded, made of Starlette's `Route` or FastAPI's `APIRoute`.

        Inside of it stand the framework's own validation, dependencies and error handlers of the route.

        Example:
            ```python
            import outlast
            from fastapi import APIRouter, FastAPI, Request
            from fastapi.routing import APIRoute
            from outlast.http import IdempotencyPolicy, idempotent

            once = idempotent(
                lambda scope: scope["app"].state.outlast,
                IdempotencyPolicy(principal=lambda scope: scope["user"].identity),
            )
            payments = APIRouter(route_class=once.routes(APIRoute))

            @payments.post("/payments", status_code=201)
            async def pay(amount: int) -> dict[str, int]:
                return {"paid": amount}

            app = FastAPI()
            app.include_router(payments)
            ```
        """
        return cast("type[Route]", _guarded_kind(route, self))


def _guarded_kind(route: Any, guard: Idempotent) -> Any:
    """Return a subclass of `route` whose `handle` is guarded; a method that the route does not have is not."""

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        route.__init__(self, *args, **kwargs)
        self.outlast_guard = guard(partial(route.handle, self))

    async def handle(self: Any, scope: Scope, receive: Receive, send: Send) -> None:
        if self.methods and scope["method"] not in self.methods:
            await route.handle(self, scope, receive, send)
        else:
            await self.outlast_guard(scope, receive, send)

    members = {"__init__": make, "handle": handle, "__module__": route.__module__}
    return type(f"Idempotent{route.__name__}", (route,), members)


def idempotent(client: Client | Callable[[Scope], Client], policy: IdempotencyPolicy) -> Idempotent:
    """Return a guard for single routes, with the arguments of `IdempotencyMiddleware`.

    | in | write |
    | --- | --- |
    | Starlette | `Route("/payments", pay, methods=["POST"], middleware=[Middleware(once)])` |
    | FastAPI | `APIRouter(route_class=once.routes(APIRoute))` |
    | Litestar | `@post("/payments", middleware=[once])` |
    | plain ASGI | `@once` above the application |

    Example:
        ```python
        import outlast
        from outlast.http import IdempotencyPolicy, idempotent

        async with outlast.connect("sqlite:///shop.db", create=True) as client:
            once = idempotent(client, IdempotencyPolicy(principal=lambda scope: scope["user"].identity))

            @once
            async def pay(scope, receive, send):
                await send({"type": "http.response.start", "status": 201, "headers": []})
                await send({"type": "http.response.body", "body": b"paid"})
        ```
    """
    return Idempotent(client, policy)
