"""What is done with one request under its key: it is carried out, its answer given again, or it is refused.

Whoever begins the record carries the request out, and nobody else does. One in doubt is settled by a probe, if there is one, and by
whoever was cut off: the token of its record says of which execution the probe has spoken.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, cast

from outlast.client import Requests, RequestView
from outlast.effects.intent import Applied, NotApplied, Unknown
from outlast.errors import StoreError
from outlast.http import problem
from outlast.http.answer import Answer, Unkept, encode
from outlast.http.asgi import ASGIApp
from outlast.http.handling import Handling, read_answer, until_done
from outlast.http.outlet import Outlet
from outlast.http.policy import Finding, IdempotencyPolicy, Probe
from outlast.http.problem import Problem
from outlast.http.request import DoubtfulRequest, GuardedRequest

logger = logging.getLogger("outlast.http")

_TOKEN_BYTES = 16
_FIRST_LOOK_SECONDS = 0.02
_LONGEST_LOOK_SECONDS = 1.0
_NOT_FOUND_OUT = "it could not be looked up"


class Exchange:
    """What is done with one request under its key."""

    def __init__(
        self,
        app: ASGIApp,
        policy: IdempotencyPolicy,
        requests: Requests,
        request: GuardedRequest,
        outlet: Outlet,
        spawn: Callable[[Awaitable[None]], object],
    ) -> None:
        self._app = app
        self._policy = policy
        self._requests = requests
        self._request = request
        self._outlet = outlet
        self._spawn = spawn
        self._token = secrets.token_hex(_TOKEN_BYTES)
        self._key = request.composite_key
        self._fingerprint = policy.fingerprint(request.scope, request.body)

    async def run(self) -> None:
        """Carry the request out, give its answer again, or refuse it."""
        try:
            found = await self._settled()
        except StoreError:
            logger.exception(
                "a request with an Idempotency-Key was refused: the store does not answer"
            )
            # Whether the record was begun is not known. If it was, nobody carries it out.
            self._spawn(until_done(self._take_back))
            found = problem.store_unavailable(self._policy.retry_after)
        if isinstance(found, Problem):
            await found.answer(self._policy.link).send(self._outlet.send)
        elif found.token == self._token:
            self._request.request_id = found.request_id
            handling = Handling(
                self._request, self._token, self._requests, self._policy, self._spawn
            )
            await handling.carry_out(self._app, self._outlet)
        else:
            await self._repeat(found)

    async def _take_back(self) -> None:
        """Let a record of one's own go; nobody else's is touched."""
        record = await self._requests.get(self._key)
        if record is not None and record.token == self._token:
            await self._requests.end(self._key, self._token, None, self._policy.keep)

    async def _settled(self) -> RequestView | Problem:
        """Return the record that is to be answered by: one's own, or one that is done. Or why there is none."""
        time = asyncio.get_running_loop().time
        until = time() + self._policy.wait.total_seconds()
        while True:
            record = await self._begin()
            if record.token == self._token:
                return record
            if record.fingerprint != self._fingerprint:
                return problem.key_reused()
            if record.state == "done":
                return record
            if record.state == "in doubt":
                refusal = await self._find_out(record)
                if refusal is not None:
                    return refusal
            elif not await self._ends_by(until):
                return problem.in_progress(self._policy.retry_after)

    async def _ends_by(self, until: float) -> bool:
        """Wait for the end of the request that is being carried out; return whether there is something else to see now."""
        time = asyncio.get_running_loop().time
        pause = _FIRST_LOOK_SECONDS
        while (left := until - time()) > 0:
            await asyncio.sleep(min(pause, left))
            record = await self._requests.get(self._key)
            if record is None or record.state != "running":
                return True
            pause = min(2 * pause, _LONGEST_LOOK_SECONDS)
        return False

    async def _begin(self) -> RequestView:
        return await self._requests.begin(
            self._key,
            fingerprint=self._fingerprint,
            token=self._token,
            hold=self._policy.hold,
            keep=self._policy.keep,
            note=self._request.note,
        )

    async def _find_out(self, record: RequestView) -> Problem | None:
        """Ask what became of a request in doubt. Return the refusal, or None when the record has been settled and is to be looked at anew."""
        probe = self._policy.on_doubt
        if probe == "refuse":
            return problem.in_doubt(record.request_id)
        found = await self._ask(probe, record)
        if isinstance(found, Unknown):
            return problem.in_doubt(record.request_id, found.why)
        answer = encode(found.value) if isinstance(found, Applied) else None
        # By the token of whoever was cut off: of several that asked, one settles it, and none that has begun anew is touched.
        await self._requests.end(self._key, record.token, answer, self._policy.keep)
        return None

    async def _ask(self, probe: Probe, record: RequestView) -> Finding:
        """Ask the application's probe. Only what it says in so many words is believed: by anything else a request would be made anew."""
        request = self._request
        try:
            asked = probe(
                DoubtfulRequest(
                    request_id=record.request_id,
                    key=request.key,
                    tenant=request.tenant,
                    principal=request.principal,
                    method=request.scope["method"],
                    path=request.scope["path"],
                    body=request.body,
                    scope=request.scope,
                )
            )
            found: Any = await asked if inspect.isawaitable(asked) else asked
        except Exception:  # the application's own code; a probe that fails has found nothing out
            logger.exception("the probe of request %s failed; it stays in doubt", record.request_id)
            return Unknown(_NOT_FOUND_OUT)
        match found:
            case Applied(Answer()) | NotApplied() | Unknown():
                return cast("Finding", found)
            case _:
                logger.error(
                    "the probe of request %s answered %s instead of Applied(Answer(…)), NotApplied() or Unknown(why); it stays in doubt",
                    record.request_id,
                    _shown(found),
                )
                return Unknown(_NOT_FOUND_OUT)

    async def _repeat(self, record: RequestView) -> None:
        answer = read_answer(record)
        if isinstance(answer, Unkept):
            refusal = problem.answer_not_kept(answer.why, answer.status)
            await refusal.answer(self._policy.link).send(self._outlet.send)
        else:
            await answer.send(self._outlet.send, replayed=True)


def _shown(found: Any) -> str:
    """Return what a probe answered, by its type: it may hold secrets."""
    if isinstance(found, type):
        return f"the class {found.__name__}"
    inner = cast("Applied[Any]", found).value if isinstance(found, Applied) else None
    return (
        f"Applied({type(inner).__name__})" if isinstance(found, Applied) else type(found).__name__
    )
