"""What an error of an effect proves: not that nothing happened, while something that the attempt has sent may have been carried out."""

# ruff: noqa: D103 - the effects of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest

import outlast
from outlast.http.transport import IdempotentTransport, Target
from outlast.journal.entry import EffectFailed

FAST = outlast.RetryPolicy(initial_interval=timedelta(microseconds=1), maximum_attempts=3)
TARGETS = [Target("login.example", carries=False)]
URL = "https://bank.example/payments"
Post = Callable[..., Awaitable[httpx.Response]]


class DeclinedError(Exception):
    """The author's proof."""


async def once(post: Post) -> None:
    answer = await post(URL, json=1)
    if answer.status_code in (401, 402) or answer.json() == "declined":
        raise DeclinedError


async def twice(post: Post) -> None:
    try:
        await once(post)
    except httpx.TransportError:
        await once(post)


async def parts(post: Post) -> None:
    await post(URL, json=1)
    answer = await post(f"{URL}/receipt", json=1, extensions={"idempotency_part": "receipt"})
    if answer.status_code == 402:
        raise DeclinedError


async def looked_after(post: Post) -> None:
    await post(URL, json=1)
    await _client(post).get(f"{URL}/1")


async def put(post: Post) -> None:
    answer = await _client(post).put(f"{URL}/1", json=1)
    if answer.json() == "declined":
        raise DeclinedError


async def authorized(post: Post) -> None:
    await post("https://login.example/token", json=1)
    await once(post)


def _client(post: Any) -> httpx.AsyncClient:
    return post.__self__


async def given_up(post: Post) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await post(URL, json="stuck")
    raise DeclinedError


@pytest.mark.parametrize(
    ("act", "outcomes", "may_have_acted"),
    [
        (once, [httpx.ConnectError] * 3, False),
        (once, [402], False),
        (once, [401], False),
        (once, [(200, "declined")], False),
        (once, [httpx.ReadError, 402], False),
        (once, [httpx.ReadError, (200, "declined")], False),
        (once, [httpx.ReadError, 401], True),
        (once, [httpx.ReadError, httpx.ConnectError, 401], True),
        (twice, [httpx.ConnectError] * 6, False),
        (twice, [*[httpx.ReadError] * 3, *[httpx.ConnectError] * 3], True),
        (twice, [*[httpx.ReadError] * 3, 401], True),
        (twice, [*[httpx.ReadError] * 3, 402], False),
        (parts, [*[httpx.ConnectError] * 3], False),
        (parts, [201, *[httpx.ConnectError] * 3], True),
        (parts, [201, 402], True),
        (looked_after, [201, *[httpx.ConnectError] * 3], True),
        (put, [httpx.ReadError, httpx.ConnectError, httpx.ConnectError], True),
        (put, [httpx.ReadError, (200, "declined")], False),
        (authorized, [200, *[httpx.ConnectError] * 3], False),
        (given_up, [None], True),
    ],
)
def test_nothing_proves_that_nothing_happened_where_something_may_have(
    act: Callable[[Post], Awaitable[None]], outcomes: list[Any], may_have_acted: bool
) -> None:
    """The effect fails as one that may have happened, whatever it is declared with."""
    left = list(outcomes)

    async def bank(request: httpx.Request) -> httpx.Response:
        outcome = left.pop(0)
        if outcome is None:
            await asyncio.Event().wait()
        if isinstance(outcome, type):
            raise outcome("no answer", request=request)
        status, body = (outcome, "") if isinstance(outcome, int) else outcome
        return httpx.Response(status, json=body)

    @outlast.effect(
        idempotent=True,
        not_applied=(DeclinedError, httpx.ConnectError),
        retry=outlast.RetryPolicy(maximum_attempts=1),
    )
    async def pay() -> None:
        transport = IdempotentTransport(httpx.MockTransport(bank), retry=FAST, targets=TARGETS)
        async with httpx.AsyncClient(transport=transport) as client:
            await act(client.post)

    @outlast.workflow
    async def buy() -> None:
        await pay()

    async def main() -> list[bool]:
        async with outlast.open("memory://") as app:
            with pytest.raises(outlast.WorkflowFailedError):
                await app.run(buy(), id="buy-1")
            entries = [one.entry for one in await app.handle("buy-1").journal()]
            return [one.unknown for one in entries if isinstance(one, EffectFailed)]

    assert asyncio.run(main()) == [may_have_acted]
    assert left == []
