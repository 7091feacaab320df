"""What a workflow can say besides calling steps and effects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from outlast.approvals.request import still_asks, subject_of
from outlast.effects.key import check_name
from outlast.errors import DefinitionError
from outlast.journal.codec import codec_of
from outlast.journal.entry import Cover
from outlast.replay.context import ApprovalRequest, RunInfo, context
from outlast.replay.entropy import RunRandom
from outlast.replay.ledger import Grant
from outlast.workflows.call import Call
from outlast.workflows.definition import Effect, Pattern
from outlast.workflows.message import Signal

T = TypeVar("T")

_LONGEST = timedelta(days=36_500)


def now() -> datetime:
    """Return the run's time: that of the last thing that was recorded, the same in every replay."""
    return context("outlast.now").now()


def random() -> RunRandom:
    """Return a fresh random generator that gives the same values in every replay."""
    return context("outlast.random").random()


def uuid4() -> UUID:
    """Return a random UUID, the same in every replay."""
    return context("outlast.uuid4").uuid4()


def info() -> RunInfo:
    """Return what the workflow may know about its own run."""
    return context("outlast.info").info()


async def sleep(duration: timedelta | float) -> None:
    """Wait; the wait survives restarts, and runs on while no worker does.

    Args:
        duration: A `timedelta`, or seconds.
    """
    context("outlast.sleep")
    await asyncio.sleep(duration.total_seconds() if isinstance(duration, timedelta) else duration)


async def receive(signal: Signal[T], *, timeout: timedelta | None = None) -> T:  # noqa: ASYNC109 - durable
    """Return the next message of this signal; messages that came earlier wait in the run's inbox.

    Raises:
        TimeoutError: None came in time.
        DecodeError: What was sent does not fit the signal's type.
    """
    current = context("outlast.receive")
    seconds = None if timeout is None else timeout.total_seconds()
    async with asyncio.timeout(seconds):
        return await current.receive(signal.name, signal.codec.decode)


async def wait_condition(
    predicate: Callable[[], bool],
    *,
    timeout: timedelta | None = None,  # noqa: ASYNC109 - durable
) -> None:
    """Wait until `predicate()` is true; it is looked at after every turn, when all messages of the turn were handled.

    Raises:
        TimeoutError: It did not become true in time.
    """
    current = context("outlast.wait_condition")
    seconds = None if timeout is None else timeout.total_seconds()
    async with asyncio.timeout(seconds):
        await current.wait_condition(predicate)


async def approval(
    subject: Any,
    *,
    covers: Sequence[Call[Any] | Pattern] = (),
    role: str,
    expires_in: timedelta,
    use_within: timedelta | None = None,
) -> Grant:
    """Ask a person, and wait for a yes.

    The decision is bound to a hash over subject and covers. A covered effect happens once, with exactly these arguments (or
    fitting the pattern), begun before the grant ends; any other call of a covered effect is refused.

    Args:
        subject: What is shown: any value that can be stored.
        covers: Calls, or patterns by `effect.where(…)`, that a yes permits.
        role: Who may decide.
        expires_in: Time to decide.
        use_within: Time to begin, counted from the request; as long as `expires_in` by default.

    Raises:
        ApprovalDeniedError: Somebody said no.
        ApprovalExpiredError: Nobody decided in time. Uncaught, it ends the run as cancelled.
        DefinitionError: A cover is not a call of an effect, a time cannot be waited for, or the role's name cannot be stored.
    """
    current = context("outlast.approval")
    for one in covers:
        if isinstance(one, Call):
            one.use()
    for name, time in (("expires_in", expires_in), ("use_within", use_within)):
        if time is not None and not isinstance(time, timedelta):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(
                f"an approval was asked with {name}={time!r}, which is no length of time",
                hint=f"give a timedelta, as {name}=timedelta(hours=72)",
            )
    until = expires_in if use_within is None else use_within
    check_name(role, what="role")
    if not (timedelta(0) < expires_in < _LONGEST and timedelta(0) < until < _LONGEST):
        raise DefinitionError(
            f"an approval cannot wait from {expires_in} to {until}",
            hint="give expires_in and use_within longer than nothing and shorter than a hundred years",
        )
    shown = codec_of(subject, where="the subject of an approval").encode(subject)
    pairs = [_cover(one) for one in covers]
    asked = subject_of(shown, pairs)
    return await current.perform(
        ApprovalRequest(
            subject=asked.body,
            subject_sha256=asked.sha256,
            covers=tuple(cover for cover, _ in pairs),
            role=role,
            expires_in=expires_in,
            use_within=until,
            same_subject=lambda recorded: still_asks(recorded, bytes(asked.body)),
        )
    )


def _cover(one: Call[Any] | Pattern) -> tuple[Cover, Any]:
    if isinstance(one, Pattern):
        return one.cover, one.fields
    callee: Any = getattr(one, "callee", None)
    if isinstance(callee, Effect):
        return callee.cover(one)
    raise DefinitionError(
        f"covers= holds {one!r}, which is no call of an effect",
        hint="give calls such as send(mail), or patterns such as send.where(to=address)",
    )
