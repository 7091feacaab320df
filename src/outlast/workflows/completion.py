"""Completion from outside: a step hands out a token, ends its attempt, and somebody else says later what came of it.

The token names an operation of one generation of a run, and its step. It is the same for every attempt, so that an answer to any of
them counts.
It is no secret of its own, but whoever holds it and may write to the store can complete the step.
"""

from __future__ import annotations

import base64
import binascii
from typing import NoReturn, cast

import msgspec
from msgspec import Struct

from outlast.errors import DefinitionError
from outlast.journal.parse import NotJsonError, parse_as
from outlast.workflows.attempt import Attempt, current_attempt
from outlast.workflows.heartbeat import current_beats

_LONGEST = 64 * 1024
"""Characters; ids and operations are shorter by far."""


class CompletionToken(Struct, frozen=True):
    """What a token says. `str` gives the token itself, one line of URL-safe text."""

    tenant: str
    run: str
    generation: int
    operation: str
    step: str

    def __str__(self) -> str:
        """Return the token."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")

    @classmethod
    def read(cls, token: str) -> CompletionToken:
        """Return what a token says.

        Raises:
            DefinitionError: It is none.
        """
        try:
            if len(token) > _LONGEST:
                raise NotJsonError("too long")
            text = token.strip().encode("ascii")
            body = base64.b64decode(text + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
            return parse_as(_tokens, body)
        except (UnicodeEncodeError, binascii.Error, NotJsonError):
            raise DefinitionError(
                "this is no completion token",
                hint="give the whole line that outlast.completion_token() has returned",
            ) from None


_tokens = msgspec.json.Decoder(CompletionToken)


class HandedOut(BaseException):
    """The body ends its attempt and leaves the step open. Past every `except Exception` of the author's."""


class AskedTooEarlyError(HandedOut):
    """The body asks for its token before what the step depends on is written. It is called again when it is."""


def handing_out(error: BaseException) -> HandedOut | None:
    """Return what a body has ended its attempt by, be it from within a group of tasks; None for an error."""
    while isinstance(error, BaseExceptionGroup):
        members = cast("tuple[BaseException, ...]", error.exceptions)
        if len(members) != 1:
            break
        error = members[0]
    return error if isinstance(error, HandedOut) else None


def completion_token() -> str:
    """Return the token by which this step can be completed from outside: one line of URL-safe text, the same for each attempt.

    Give it away, then end the attempt by `complete_later()`. An answer that is faster than that counts too.

    Ask for it first of all: in a run whose durability is `async` or `exit` the body may end here, and be called again when all that
    came before the step is written. Whoever has a token can count on it that its step is there.

    Raises:
        DefinitionError: No step is running here. An effect has no token: whether it happened must be known.

    Example:
        ```python
        import asyncio

        import outlast

        asked: asyncio.Queue[str] = asyncio.Queue()

        @outlast.step
        async def review(text: str) -> str:
            asked.put_nowait(outlast.completion_token())  # in earnest: mail it, or give it to a webhook
            outlast.complete_later()

        @outlast.workflow
        async def publish(text: str) -> str:
            return await review(text)

        async with outlast.open("memory://") as app:
            handle = await app.start(publish("hello"), id="post-1")
            await app.complete(await asked.get(), "looks good")
            assert await handle.result() == "looks good"
        ```
    """
    here = _step("outlast.completion_token()")
    if here.ahead:
        raise AskedTooEarlyError
    beats = current_beats.get(None)
    if beats is not None:
        beats.hands_out = True
    return str(
        CompletionToken(here.tenant, here.run_id, here.generation, here.operation, here.name)
    )


def complete_later() -> NoReturn:
    """End this attempt of a step without an outcome: somebody who has its `completion_token()` will say what came of it.

    Nothing of it stays in memory, and the run can leave memory too. `client.complete(token, value)`, `client.fail(token, message)` or
    `outlast runs complete TOKEN` end the wait; so does the `start_to_close_timeout`, which counts anew from here, the
    `schedule_to_close_timeout`, or the `heartbeat_timeout`, which counts from here and from each `client.heartbeat(token)`: then the
    attempt has failed by `TimeoutError`, and the retry policy decides. Without any of them it waits for ever.

    It raises what no `except Exception` stops, so call it in the body itself, as the last thing that it does.

    Raises:
        DefinitionError: No step is running here.

    Example:
        ```python
        from datetime import timedelta

        import outlast

        @outlast.step(
            start_to_close_timeout=timedelta(milliseconds=50),
            retry=outlast.RetryPolicy(maximum_attempts=1),
        )
        def answer() -> int:
            outlast.complete_later()

        @outlast.workflow
        async def patient() -> str:
            try:
                return f"{await answer()}"
            except TimeoutError:
                return "nobody answered"

        async with outlast.open("memory://") as app:
            assert await app.run(patient(), id="ask-1") == "nobody answered"
        ```
    """
    _step("outlast.complete_later()")
    raise HandedOut


def _step(called: str) -> Attempt:
    found = current_attempt.get(None)
    if found is None or found.key:
        raise DefinitionError(
            f"{called} was called {'in an effect' if found else 'outside a step'}",
            step=found.name if found else None,
            hint="only a @step can be completed from outside: what an effect did must be known to whoever attempts it. Start the work in "
            "an effect, and wait for its end in a step",
        )
    return found
