"""Transports of httpx that send requests again where that is safe, under the key of the running effect.

`IdempotentTransport` is for `httpx.AsyncClient`, `SyncIdempotentTransport` for `httpx.Client`; both decide by `outlast.http.course`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self

try:
    import httpx
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "outlast.http as a client needs httpx; install the extra: in a clone of Outlast, pip install '.[http]'",
        name="httpx",
    ) from error

from outlast.effects.retry import RetryPolicy
from outlast.errors import (
    DefinitionError,
    FinalAnswerError,
    KeyReusedError,
    ReceiverBusyError,
    ReceiverInDoubtError,
)
from outlast.http.carry import KeyHook, Target
from outlast.http.course import LONGEST_WAIT, TRIES, Course, Rules
from outlast.http.reply import is_key_reused

__all__ = [
    "FinalAnswerError",
    "IdempotentTransport",
    "KeyHook",
    "KeyReusedError",
    "ReceiverBusyError",
    "ReceiverInDoubtError",
    "SyncIdempotentTransport",
    "Target",
    "is_key_reused",
]


class IdempotentTransport(httpx.AsyncBaseTransport):
    """Sends requests again where that is safe, and the key of the running effect with each POST and PATCH.

    | request | sent again |
    | --- | --- |
    | GET, HEAD, OPTIONS, TRACE, PUT, DELETE, QUERY | after an error of the connection, after 429 and 503 |
    | POST, PATCH with a key that the receiver knows | the same, and after 409 |
    | any other | never |

    The receiver is taken to know the key of an effect that is declared `idempotent=True`, and one that the author writes into the header.
    A step has no key: a POST of its own goes out without one, and once. One effect has one key, so it makes one POST or PATCH (as often as it likes); several are named:
    `client.post(…, extensions={"idempotency_part": "receipt"})`.

    Args:
        transport: What sends; httpx's own by default. Options as `http2` or `verify` go to it.
        targets: Hosts that are treated otherwise than by default; the first that matches counts.
        retry: How often one request is sent, and the waits in between; `Retry-After` makes them longer.
        longest_wait: A receiver that asks for more is not waited for: the next attempt of the effect comes then.
        requires_key: Refuse a POST or PATCH that has no key, since no effect runs where it comes from: in a thread that was begun without the
            effect's context, say. For clients that only effects use.

    Raises:
        KeyReusedError: When a receiver answers 422 to a key; no retry policy repeats that.
        FinalAnswerError: In a step or effect, when a receiver gives a failure again that it keeps for the key, or has no answer any more;
            no retry policy repeats that either.
        ReceiverInDoubtError: In a step or effect, when a receiver that runs `outlast.http` does not know what became of the request.
        ReceiverBusyError: In a step or effect, when a receiver asks for more time than an attempt has; the next attempt waits that long.
        DefinitionError: When a key would go out with a second request, or to an origin that nobody has named; and see `requires_key`.

    Example:
        ```python
        import httpx
        import outlast
        from outlast.http.transport import IdempotentTransport

        answers = [httpx.Response(409, headers={"Retry-After": "0"}), httpx.Response(201, text="order 1")]
        keys = set()

        def receiver(request: httpx.Request) -> httpx.Response:
            keys.add(request.headers["Idempotency-Key"])
            return answers.pop(0)

        @outlast.effect(idempotent=True)
        async def order(item: str) -> str:
            async with httpx.AsyncClient(transport=IdempotentTransport(httpx.MockTransport(receiver))) as client:
                response = await client.post("https://shop.example/orders", json={"item": item})
                return response.raise_for_status().text

        @outlast.workflow
        async def shop(item: str) -> str:
            return await order(item)

        async with outlast.open("memory://") as app:
            assert await app.run(shop("tea"), id="shop-1") == "order 1"
        assert len(keys) == 1 and answers == []
        ```
    """

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        targets: Sequence[Target] = (),
        retry: RetryPolicy = TRIES,
        longest_wait: timedelta = LONGEST_WAIT,
        requires_key: bool = False,
    ) -> None:
        self._rules = Rules(targets, retry, longest_wait, requires_key)
        _check_sends(transport, "handle_async_request", "httpx.AsyncHTTPTransport()")
        self._transport = httpx.AsyncHTTPTransport() if transport is None else transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and send it again; see the class."""
        course = Course(request, self._rules, time.time)
        while True:
            sent = course.next()
            try:
                response = await self._transport.handle_async_request(sent)
            except httpx.TransportError as error:
                wait = course.failed(error)
            else:
                try:
                    if course.must_read(response):
                        await response.aread()
                        course.judge(response)
                    answer = course.answered(response)
                except BaseException:
                    await response.aclose()
                    raise
                if answer is None:
                    return response
                await response.aclose()
                wait = answer
            await asyncio.sleep(wait)

    async def aclose(self) -> None:
        """Close the transport that sends."""
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        """Open the transport that sends."""
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """Close the transport that sends."""
        await self._transport.__aexit__(exc_type, exc_value, traceback)


class SyncIdempotentTransport(httpx.BaseTransport):
    """The same for `httpx.Client`; see `IdempotentTransport`.

    Example:
        ```python
        import httpx
        import outlast
        from outlast.http.transport import SyncIdempotentTransport, Target

        keys = []

        def receiver(request: httpx.Request) -> httpx.Response:
            keys.append(request.headers["Idempotency-Key"])
            return httpx.Response(201, text="order 1")

        @outlast.effect(idempotent=True)
        def order(item: str) -> str:
            transport = SyncIdempotentTransport(
                httpx.MockTransport(receiver), targets=[Target("*.example", form="raw")]
            )
            with httpx.Client(transport=transport) as client:
                return client.post("https://shop.example/orders", json={"item": item}).text

        @outlast.workflow
        async def shop(item: str) -> str:
            return await order(item)

        async with outlast.open("memory://") as app:
            assert await app.run(shop("tea"), id="shop-1") == "order 1"
        assert len(keys[0]) == 32
        ```
    """

    def __init__(
        self,
        transport: httpx.BaseTransport | None = None,
        *,
        targets: Sequence[Target] = (),
        retry: RetryPolicy = TRIES,
        longest_wait: timedelta = LONGEST_WAIT,
        requires_key: bool = False,
    ) -> None:
        self._rules = Rules(targets, retry, longest_wait, requires_key)
        _check_sends(transport, "handle_request", "httpx.HTTPTransport()")
        self._transport = httpx.HTTPTransport() if transport is None else transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and send it again; see the class."""
        course = Course(request, self._rules, time.time)
        while True:
            sent = course.next()
            try:
                response = self._transport.handle_request(course.watched(sent))
            except httpx.TransportError as error:
                wait = course.failed(error)
            else:
                try:
                    if course.must_read(response):
                        response.read()
                        course.judge(response)
                    answer = course.answered(response)
                except BaseException:
                    response.close()
                    raise
                if answer is None:
                    return response
                response.close()
                wait = answer
            time.sleep(wait)

    def close(self) -> None:
        """Close the transport that sends."""
        self._transport.close()

    def __enter__(self) -> Self:
        """Open the transport that sends."""
        self._transport.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """Close the transport that sends."""
        self._transport.__exit__(exc_type, exc_value, traceback)


def _check_sends(transport: object, way: str, fitting: str) -> None:
    """Refuse what cannot send as the client asks it to, such as a synchronous transport for an asynchronous client.

    Raises:
        DefinitionError: It cannot.
    """
    if transport is not None and not callable(getattr(transport, way, None)):
        raise DefinitionError(
            f"{transport!r} cannot send here: it has no {way}", hint=f"give one as {fitting}"
        )
