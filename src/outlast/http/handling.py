"""One request, carried out under its key in a task of its own: begun in the record, held while it runs, ended with its answer.

Whatever the server does with its own task (the client has gone, a timeout), this goes on. If this process ends, nobody renews the hold any
more, and the record is in doubt. The record is never ended by a guess.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from outlast.client import Requests, RequestView
from outlast.errors import DecodeError, StoreError, StoreUnavailableError
from outlast.http import problem
from outlast.http.answer import Answer, Unkept, decode, encode
from outlast.http.asgi import ASGIApp
from outlast.http.body import handed_on
from outlast.http.outlet import Outlet
from outlast.http.policy import IdempotencyPolicy
from outlast.http.recorder import Recorder
from outlast.http.request import GuardedRequest

logger = logging.getLogger("outlast.http")

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0
_RENEWALS = 3
"""How often a hold is renewed within its time."""


class IncompleteAnswerError(RuntimeError):
    """The application returned before its answer was whole."""


class Handling:
    """The execution of one request whose record this process has begun.

    Args:
        spawn: Runs what is to go on when the request's own task has ended.
    """

    def __init__(
        self,
        request: GuardedRequest,
        token: str,
        requests: Requests,
        policy: IdempotencyPolicy,
        spawn: Callable[[Awaitable[None]], object],
    ) -> None:
        self._request = request
        self._token = token
        self._requests = requests
        self._policy = policy
        self._spawn = spawn
        self._over = asyncio.Event()
        self._is_ending = False

    async def carry_out(self, app: ASGIApp, outlet: Outlet) -> None:
        """Call the application, and keep its answer.

        Raises: Exception: What the application raised. If its answer was not begun, that of the guard has been sent.
        """
        self._spawn(self._keep_hold())
        recorder = Recorder(outlet, self._policy, self._settle)
        receive = handed_on(self._request.body, recorder.ended)
        try:
            await app(self._request.scope, receive, recorder.send)
            if not recorder.is_ended:
                raise IncompleteAnswerError(
                    "the application returned before its answer under an Idempotency-Key was whole"
                )
        except Exception:
            if not recorder.is_ended:
                await self._fail(recorder, outlet)
            raise
        finally:
            if not self._is_ending:
                self._over.set()

    async def _fail(self, recorder: Recorder, outlet: Outlet) -> None:
        """Keep that the application raised. Where that is not to be kept, whoever is further out answers."""
        answer = problem.handler_failed(recorder.status if recorder.is_begun else 0).answer(
            self._policy.link
        )
        is_kept = self._is_kept(answer.status)
        other = await self._settle(answer)
        if is_kept and not recorder.is_begun:
            await (other or answer).send(outlet.send, replayed=other is not None)

    def _is_kept(self, status: int) -> bool:
        keep = self._request.keep
        return self._policy.keeps(status) if keep is None else keep

    async def _settle(self, answer: Answer | Unkept) -> Answer | None:
        """End the record; return the answer that stands in it, if that is another one: somebody has resolved it meanwhile."""
        data = encode(answer) if self._is_kept(answer.status) else None
        self._is_ending = True
        try:
            standing = await self._end(data)
        except StoreError:
            logger.exception(
                "the answer to request %s could not be kept: the store does not answer. It is tried again; if this process ends first, the key "
                "is in doubt",
                self._request.request_id,
            )
            self._spawn(self._end_later(data))
            return None
        return None if standing is None or data is None else _other_answer(standing, data)

    async def _end(self, data: bytes | None) -> RequestView | None:
        """End the record, which is held until that is done."""
        key, keep = self._request.composite_key, self._policy.keep
        standing = await self._requests.end(key, self._token, data, keep)
        self._over.set()
        return standing

    async def _end_later(self, data: bytes | None) -> None:
        try:
            await until_done(lambda: self._end(data))
        finally:
            self._over.set()

    async def _keep_hold(self) -> None:
        """Renew the hold until the request is over."""
        hold = self._policy.hold
        usual = hold.total_seconds() / _RENEWALS
        pause = usual
        while not await self._is_over_within(pause):
            pause = usual
            try:
                is_held = await self._requests.hold(self._request.composite_key, self._token, hold)
            except StoreError as error:
                logger.warning(
                    "the hold of request %s could not be renewed: %s",
                    self._request.request_id,
                    error,
                )
                pause = usual / _RENEWALS
                continue
            if not is_held and not self._is_ending:
                logger.error(
                    "request %s was resolved by somebody while it is carried out: its hold had lapsed. Give the policy a `hold` longer than "
                    "this process ever stands still",
                    self._request.request_id,
                )
            if not is_held:
                return

    async def _is_over_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            return False
        return True


async def until_done(act: Callable[[], Awaitable[object]]) -> None:
    """Do something at the store, again and again until it can be reached."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        await asyncio.sleep(pause)
        try:
            await act()
        except StoreUnavailableError:
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        except StoreError:
            logger.exception("the record of a request cannot be ended")
            return
        else:
            return


def read_answer(record: RequestView) -> Answer | Unkept:
    """Return what a record holds that is done; of what is no answer, that it cannot be read."""
    try:
        return decode(record.answer or b"")
    except DecodeError as error:
        logger.exception("%s (request %s)", error.message, record.request_id)
        return Unkept(0, "cannot be read")


def _other_answer(standing: RequestView, data: bytes) -> Answer | None:
    if standing.state != "done" or standing.answer == data:
        return None
    answer = read_answer(standing)
    return answer if isinstance(answer, Answer) else None
