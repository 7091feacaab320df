"""An effect and the server side of this package, together: what a guard says is what the transport understands."""

# ruff: noqa: D102, D103 - the doubles, workflows and effects of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import outlast
from outlast.http import Answer, IdempotencyMiddleware, IdempotencyPolicy
from outlast.http.answer import encode
from outlast.http.transport import (
    FinalAnswerError,
    IdempotentTransport,
    KeyReusedError,
    ReceiverInDoubtError,
    Target,
    is_key_reused,
)
from outlast.journal.entry import EffectFailed

QUICK = outlast.RetryPolicy(initial_interval=timedelta(milliseconds=1), backoff_coefficient=1.0)
SLOWER = outlast.RetryPolicy(initial_interval=timedelta(milliseconds=30))  # than the hold lasts
TRIES = outlast.RetryPolicy(initial_interval=timedelta(milliseconds=1), maximum_attempts=3)
ASK = 7


class Service:
    """A guarded service of payments, in this process.

    Args:
        act: What a handler does when it has paid; None for an answer with the number of the payment.
        statuses: Of its answers, in their order.
    """

    def __init__(self, act: Callable[[], Any] | None, policy: IdempotencyPolicy) -> None:
        self.paid: list[Any] = []
        self.statuses: list[int] = []
        self.act = act
        app = Starlette(routes=[Route("/payments", self.pay, methods=["POST"])])
        self.app = app
        self.policy = policy
        self.client: Any = None

    async def pay(self, request: Request) -> Any:
        self.paid.append(await request.json())
        if self.act is not None:
            return self.act()
        return JSONResponse({"payment": len(self.paid)}, status_code=201)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with outlast.open("memory://") as client:
            self.client = client
            guarded = IdempotencyMiddleware(self.app, client, self.policy)
            statuses = self.statuses
            inner = httpx.ASGITransport(guarded, raise_app_exceptions=False)

            class Counted(httpx.AsyncBaseTransport):
                async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
                    response = await inner.handle_async_request(request)
                    statuses.append(response.status_code)
                    return response

            self.transport = Counted()
            current.append(self)
            yield
            current.clear()


current: list[Service] = []


async def send(
    body: Any, targets: Any = (), headers: dict[str, str] | None = None
) -> httpx.Response:
    transport = IdempotentTransport(current[0].transport, retry=TRIES, targets=targets)
    async with httpx.AsyncClient(transport=transport, base_url="http://pay.example") as client:
        return await client.post("/payments", json=body, headers=headers)


@outlast.effect(idempotent=True, retry=QUICK)
async def pay(amount: int) -> int:
    return (await send({"amount": amount})).raise_for_status().json()["payment"]


@outlast.effect(idempotent=True, retry=QUICK)
async def pay_forgetfully(amount: int) -> int:
    """Sends other content each time, and loses the first answer."""
    number = outlast.attempt().number
    answer = (await send({"amount": amount, "attempt": number})).raise_for_status().json()
    if number == 1:
        raise OSError("the answer was lost")
    return answer["payment"]


@outlast.workflow
async def settle(amount: int) -> int:
    return await pay(amount)


@outlast.workflow
async def settle_forgetfully(amount: int) -> int:
    return await pay_forgetfully(amount)


def run(service: Service, call: Any) -> tuple[Any, Any]:
    """Run a workflow beside the service; return what came of it, and the failure in its journal."""

    async def main() -> tuple[Any, Any]:
        async with service.open(), outlast.open("memory://") as app:
            handle = await app.start(call, id="settle-1")
            try:
                end: Any = await handle.result()
            except outlast.WorkflowFailedError as error:
                end = error.__cause__
            entries = [one.entry for one in await handle.journal()]
            return end, next((one for one in entries if isinstance(one, EffectFailed)), None)

    return asyncio.run(main())


def fail() -> Any:
    raise RuntimeError("after the money moved")


def unavailable() -> JSONResponse:
    return JSONResponse({"detail": "after the money moved"}, status_code=503)


def policy(**given: Any) -> IdempotencyPolicy:
    return IdempotencyPolicy(principal=lambda _: "ann", **given)


@pytest.mark.parametrize(("act", "status"), [(fail, 500), (unavailable, 503)])
def test_a_kept_failure_ends_the_attempts(act: Callable[[], Any], status: int) -> None:
    """The first answer and one repetition, although the policy has no end: none comes when `keep` is over and is carried out anew."""
    service = Service(act, policy())
    end, failed = run(service, settle(ASK))
    assert isinstance(end, FinalAnswerError)
    assert (end.status, end.run, end.step) == (status, "settle-1", "pay")
    assert "the first request with the key failed with this answer" in str(end)
    assert service.statuses == [status, status] and len(service.paid) == 1
    assert failed.unknown
    assert end.detail and end.detail in str(end)


def test_an_answer_that_was_not_kept_ends_the_attempts() -> None:
    """The payment was made, its answer lost, and nobody can give it again."""

    def large() -> JSONResponse:
        return JSONResponse({"payment": "x" * 100}, status_code=201)

    @outlast.effect(idempotent=True, retry=QUICK, name="pay_and_lose")
    async def pay_and_lose(amount: int) -> int:
        answer = (await send({"amount": amount})).raise_for_status().json()
        if outlast.attempt().number == 1:
            raise OSError("the answer was lost")
        return answer["payment"]

    @outlast.workflow(name="lose")
    async def lose(amount: int) -> int:
        return await pay_and_lose(amount)

    service = Service(large, policy(largest_answer_bytes=20))
    end, failed = run(service, lose(ASK))
    assert isinstance(end, FinalAnswerError) and end.status == 409
    assert "larger than the 20 bytes" in end.detail
    assert service.statuses == [201, 409] and failed.unknown


def test_a_reused_key_is_told_as_one() -> None:
    """By the words of the guard, not by the status alone."""
    service = Service(None, policy())
    end, _ = run(service, settle_forgetfully(ASK))
    assert isinstance(end, KeyReusedError) and end.certain
    assert "the receiver knows the key with other content" in str(end)
    assert service.statuses == [201, 422]


def test_content_that_is_not_valid_is_no_reused_key() -> None:
    """A framework's 422 stops the effect too; nobody says that the key was used. With `is_key_reused` it is given back."""

    def invalid() -> JSONResponse:
        return JSONResponse({"detail": [{"msg": "should be int"}]}, status_code=422)

    end, _ = run(Service(invalid, policy()), settle(ASK))
    assert isinstance(end, KeyReusedError) and not end.certain
    assert "should be int" in str(end) and "knows the key with other content, or" in str(end)

    @outlast.effect(idempotent=True, name="pay_knowing")
    async def pay_knowing(amount: int) -> int:
        targets = [Target("pay.example", is_reuse=is_key_reused)]
        return (await send({"amount": amount}, targets)).status_code

    @outlast.workflow(name="know")
    async def know(amount: int) -> int:
        return await pay_knowing(amount)

    assert run(Service(invalid, policy()), know(ASK))[0] == 422


def test_a_receiver_in_doubt_is_asked_once_an_attempt_until_somebody_has_said() -> None:
    """Its operator finds the request by the id in the error; the next attempt learns what he said."""
    service = Service(None, policy(hold=timedelta(milliseconds=1)))
    told: list[ReceiverInDoubtError] = []

    @outlast.effect(idempotent=True, retry=SLOWER, name="pay_in_doubt")
    async def pay_in_doubt(amount: int) -> int:
        try:
            return (await send({"amount": amount})).raise_for_status().json()["payment"]
        except ReceiverInDoubtError as error:
            told.append(error)
            if len(told) == 2:
                requests = service.client.requests
                doubt = await requests.find(error.request_id)
                answer = encode(Answer.json(201, {"payment": 9}))
                await requests.resolve(
                    doubt.request_id, answer=answer, reason="found", seen_token=doubt.token
                )
            raise

    def cut() -> Any:
        raise asyncio.CancelledError

    @outlast.workflow(name="doubt")
    async def doubt(amount: int) -> int:
        return await pay_in_doubt(amount)

    service.act = cut
    end, _ = run(service, doubt(ASK))
    assert end == 9 and len(service.paid) == 1
    assert "does not know whether it carried the request out" in str(told[0])
    assert told[0].request_id in str(told[0]) and "cut off" in told[0].detail
    assert service.statuses == [409, 409, 201]


def test_outside_of_attempts_a_kept_failure_is_given_back_at_once() -> None:
    """Once the receiver says that it keeps it, also a 503 is sent no more: nothing that it would answer is new."""

    async def main() -> list[int]:
        service = Service(unavailable, policy())
        async with service.open():
            given = [
                (await send({}, headers={"idempotency-key": '"k"'})).status_code for _ in range(2)
            ]
        assert given == [503, 503]
        return service.statuses

    assert asyncio.run(main()) == [503] * 3
