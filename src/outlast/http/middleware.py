"""The server side of the Idempotency-Key header, as pure ASGI middleware: a request is carried out once per key, and its answer given again.

A key whose request was cut off is *in doubt*: nobody repeats it until an operator or a probe says what happened. When the store
cannot be reached, nothing is carried out at all.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

from outlast.client import Client
from outlast.errors import DefinitionError
from outlast.http import problem
from outlast.http.asgi import UNRECORDED, ASGIApp, Receive, Scope, Send
from outlast.http.body import BodyTooLargeError, read_body
from outlast.http.exchange import Exchange
from outlast.http.key import MalformedKeyError
from outlast.http.outlet import Outlet
from outlast.http.policy import IdempotencyPolicy, Identify
from outlast.http.problem import Problem
from outlast.http.request import GUARDED, GuardedRequest, guarded

logger = logging.getLogger("outlast.http")


class IdempotencyMiddleware:
    """Carries out a request with an Idempotency-Key once, and gives its answer to every repetition.

    Put it inside of what authenticates and outside of what acts. Whatever is no guarded request goes through untouched: other methods, websockets,
    lifespan.

    Args:
        app: What is guarded.
        client: Where keys are kept: a client, or a function that returns it from the request's scope, since an application opens its client when
            it starts.
        policy: What is asked of requests, and promised to them.

    Example:
        ```python
        import outlast
        from outlast.http import IdempotencyMiddleware, IdempotencyPolicy

        async def app(scope, receive, send):  # a Starlette, FastAPI or Litestar application is one, too
            await send({"type": "http.response.start", "status": 201, "headers": []})
            await send({"type": "http.response.body", "body": b"paid"})

        policy = IdempotencyPolicy(principal=lambda scope: scope["user"].identity)

        async with outlast.connect("sqlite:///shop.db", create=True) as client:
            guarded_app = IdempotencyMiddleware(app, client, policy)
        ```
    """

    def __init__(
        self,
        app: ASGIApp,
        client: Client | Callable[[Scope], Client],
        policy: IdempotencyPolicy,
    ) -> None:
        self._app = app
        self._client = client
        self._policy = policy
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one connection."""
        if not self._guards(scope):
            await self._app(scope, receive, send)
            return
        try:
            key = self._policy.format.read(scope)
        except MalformedKeyError as error:
            await self._refuse(problem.key_malformed(str(error)), send)
            return
        if key is not None:
            await self._guard(key, scope, receive, send)
        elif self._policy.required:
            await self._refuse(problem.key_missing(), send)
        else:
            await self._app(scope, receive, send)

    def _guards(self, scope: Scope) -> bool:
        """Whether a connection is a request that is guarded here, and not further out already."""
        return (
            scope["type"] == "http"
            and scope["method"] in self._policy.methods
            and guarded(scope) is None
        )

    async def _guard(self, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Read who asks for what; nothing is begun before all of it is known."""
        principal = await _identity(self._policy.principal, scope)
        if not principal.strip():
            raise _nobody(self._policy.principal, "empty text")
        tenant = await _identity(self._policy.tenant, scope)
        try:
            body = await read_body(scope, receive, self._policy.largest_body_bytes)
        except BodyTooLargeError:
            await self._refuse(problem.body_too_large(self._policy.largest_body_bytes), send)
            return
        if body is not None:  # None: the client has gone before it had said what it wants
            await self._answer(GuardedRequest(key, tenant, principal, body, _recorded(scope)), send)

    async def _answer(self, request: GuardedRequest, send: Send) -> None:
        """Answer in a task of its own, which goes on when the server gives up its own."""
        request.scope[GUARDED] = request
        client = self._client(request.scope) if callable(self._client) else self._client
        outlet = Outlet(send)
        exchange = Exchange(self._app, self._policy, client.requests, request, outlet, self._spawn)
        task = self._spawn(exchange.run())
        try:
            await asyncio.shield(task)
        finally:
            if not task.done():
                outlet.close()
                task.add_done_callback(_report)

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(cast("Coroutine[Any, Any, None]", work))
        self._tasks.add(task)  # the loop itself holds its tasks only weakly
        task.add_done_callback(self._tasks.discard)
        return task

    async def _refuse(self, refusal: Problem, send: Send) -> None:
        await refusal.answer(self._policy.link).send(send)


async def _identity(identify: Identify, scope: Scope) -> str:
    found = identify(scope)
    identity = await found if inspect.isawaitable(found) else found
    if type(identity) is not str:  # None would make all who are not known to it one and the same
        raise _nobody(identify, type(identity).__name__)
    return identity


def _nobody(identify: Identify, returned: str) -> DefinitionError:
    return DefinitionError(
        f"a request belongs to nobody: {getattr(identify, '__qualname__', identify)} returned {returned}",
        hint="return a str: an id that does not change; refuse whoever is not authenticated further out. Where all clients are "
        'meant to be one, write so: principal=lambda scope: "all"',
    )


def _recorded(scope: Scope) -> Scope:
    """Return the scope for the application, without the ways to answer that cannot be recorded."""
    extensions: dict[str, Any] = scope.get("extensions") or {}
    return {
        **scope,
        "extensions": {name: one for name, one in extensions.items() if name not in UNRECORDED},
    }


def _report(task: asyncio.Task[None]) -> None:
    """Say what a request has raised that nobody waits for any more."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a request whose client has gone failed", exc_info=error)
