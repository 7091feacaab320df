"""An HTTP API that takes a payment once, however often it is asked, and whatever is killed in between.

The guard answers a repeated request. The payment itself is a durable run whose id is made of the request's: when this process dies in the
middle, the run goes on in the next one, and a probe tells the client where to find it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from pydantic import BaseModel, Field
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware

import outlast
from outlast import Applied, NotApplied
from outlast.http import (
    Answer,
    DoubtfulRequest,
    IdempotencyMiddleware,
    IdempotencyPolicy,
    KeyFormat,
    PublishedPolicy,
    guarded,
)

BANK = Path(os.environ.get("BANK", "bank"))
TOKENS = {"Bearer ann-token": "ann", "Bearer bob-token": "bob"}


class Order(BaseModel):
    to: str
    amount: int = Field(gt=0)
    after_seconds: int = 0


@outlast.effect(idempotent=True)
def transfer(to: str, amount: int) -> str:
    """Move money at a bank that knows keys: one file for each key, written once."""
    receipt = outlast.idempotency_key()[:8]
    BANK.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError), (BANK / f"{receipt}.txt").open("x") as file:
        file.write(f"{amount} to {to}\n")
    return receipt


@outlast.workflow
async def pay(to: str, amount: int, after_seconds: int) -> str:
    """Pay, at once or later."""
    await outlast.sleep(after_seconds)
    return await transfer(to, amount)


def client_of(scope: Any) -> outlast.App:
    """The client that the application has opened when it started."""
    return scope["state"]["outlast"]


def run_id_of(request_id: str) -> str:
    """One request, one run: also if its handler is called twice."""
    return f"payment-{request_id[:32]}"


async def find_payment(request: DoubtfulRequest) -> Applied[Answer] | NotApplied:
    """A handler was cut off: has it started the payment?"""
    run_id = run_id_of(request.request_id)
    try:
        await client_of(request.scope).handle(run_id).status()
    except outlast.RunNotFoundError:
        return NotApplied()
    where = f"/payments/{run_id}"
    return Applied(Answer.json(202, {"payment": run_id}, headers=[("location", where)]))


POLICY = IdempotencyPolicy(
    # Whoever is not known is answered 401 by the route, and no answer of that is kept.
    principal=lambda scope: scope["user"].display_name or "nobody",
    format=KeyFormat(shortest=8, lenient=True),
    link="/idempotency",
    keep=timedelta(days=7),
    hold=timedelta(seconds=2),
    wait=timedelta(seconds=1),
    on_doubt=find_payment,
)


class Bearer(AuthenticationBackend):
    """Two users, known by their tokens."""

    async def authenticate(self, conn: Any) -> tuple[AuthCredentials, SimpleUser] | None:
        user = TOKENS.get(conn.headers.get("authorization", ""))
        return (AuthCredentials(["payments"]), SimpleUser(user)) if user else None


@contextlib.asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
    async with outlast.open() as client:  # OUTLAST_DATABASE_URL, or sqlite:///outlast.db
        yield {"outlast": client}


def known(request: Request) -> str:
    """Who asks. A 401 is not kept: the key is free."""
    if not request.user.is_authenticated:
        raise HTTPException(401, "send Authorization: Bearer ann-token")
    return request.user.display_name


User = Annotated[str, Depends(known)]
app = FastAPI(lifespan=lifespan)
app.add_middleware(IdempotencyMiddleware, client=client_of, policy=POLICY)
app.add_middleware(AuthenticationMiddleware, backend=Bearer())  # added last, so it is outermost
app.add_route("/idempotency", PublishedPolicy(POLICY))


@app.post("/payments", status_code=201)
async def create_payment(order: Order, user: User, request: Request) -> dict[str, str]:
    """Pay, and answer when it is done."""
    once = guarded(request.scope)
    assert once is not None  # the policy requires a key
    run_id = run_id_of(once.request_id)
    call = pay(order.to, order.amount, order.after_seconds)
    receipt = await client_of(request.scope).run(call, id=run_id)
    return {"payment": run_id, "receipt": receipt}


@app.get("/payments/{run_id}")
async def show_payment(
    run_id: str, user: User, request: Request, response: Response
) -> dict[str, str]:
    """How a payment stands."""
    handle = client_of(request.scope).handle(run_id, pay)
    try:
        status = await handle.status()
    except outlast.RunNotFoundError:
        raise HTTPException(404, "no such payment") from None
    if status.status == "completed":
        return {"payment": run_id, "receipt": await handle.result()}
    response.headers["retry-after"] = "1"
    return {"payment": run_id, "status": status.status}


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))
