"""What may be done about an effect whose attempt ended without a known outcome.

The three declarations, the three answers of a probe, and the arithmetic of assumption A: no attempt acts later than its
`start_to_close_timeout` plus `settle` after its start. Pure: who calls this knows the clock.
"""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from typing import Generic, TypeVar

import msgspec
from msgspec import Raw

from outlast.journal.failure import Failure

T = TypeVar("T")

SETTLE = timedelta(seconds=2)


class Repeat(Enum):
    """How an attempt may be repeated after an unknown outcome."""

    IDEMPOTENT = "idempotent"
    PROBED = "probed"
    NEVER = "never"


class Applied(msgspec.Struct, Generic[T], frozen=True):
    """A probe's answer: the effect happened, and this is its result.

    Example:
        ```python
        from datetime import timedelta
        import outlast
        from outlast import Applied, NotApplied, Unknown

        ORDERS: dict[str, int] = {}
        ONLINE = True

        async def find_order(item: str) -> Applied[int] | NotApplied | Unknown:
            if not ONLINE:
                return Unknown("the shop does not answer")
            return Applied(ORDERS[item]) if item in ORDERS else NotApplied()

        @outlast.effect(probe=find_order, start_to_close_timeout=timedelta(seconds=5))
        async def order(item: str) -> int:
            ORDERS[item] = len(ORDERS) + 1
            return ORDERS[item]

        await order.plain("tea")
        assert await find_order("tea") == Applied(1)
        ```
    """

    value: T


class NotApplied(msgspec.Struct, frozen=True):
    """A probe's answer: the effect did not happen, and no attempt of it is under way.

    Example:
        ```python
        from datetime import timedelta
        import outlast
        from outlast import Applied, NotApplied, Unknown

        ORDERS: dict[str, int] = {}
        ONLINE = True

        async def find_order(item: str) -> Applied[int] | NotApplied | Unknown:
            if not ONLINE:
                return Unknown("the shop does not answer")
            return Applied(ORDERS[item]) if item in ORDERS else NotApplied()

        @outlast.effect(probe=find_order, start_to_close_timeout=timedelta(seconds=5))
        async def order(item: str) -> int:
            ORDERS[item] = len(ORDERS) + 1
            return ORDERS[item]

        assert await find_order("coffee") == NotApplied()
        ```
    """


class Unknown(msgspec.Struct, frozen=True):
    """A probe's answer: the remote system cannot say.

    Example:
        ```python
        from datetime import timedelta
        import outlast
        from outlast import Applied, NotApplied, Unknown

        ORDERS: dict[str, int] = {}
        ONLINE = True

        async def find_order(item: str) -> Applied[int] | NotApplied | Unknown:
            if not ONLINE:
                return Unknown("the shop does not answer")
            return Applied(ORDERS[item]) if item in ORDERS else NotApplied()

        @outlast.effect(probe=find_order, start_to_close_timeout=timedelta(seconds=5))
        async def order(item: str) -> int:
            ORDERS[item] = len(ORDERS) + 1
            return ORDERS[item]

        ONLINE = False
        assert await find_order("tea") == Unknown("the shop does not answer")
        ```
    """

    why: str


def quiet_after(*, timeout: timedelta | None, settle: timedelta, since: timedelta) -> timedelta:
    """Return how much longer to wait until no earlier attempt can act any more.

    Args:
        timeout: The effect's `start_to_close_timeout`.
        since: How long ago the last attempt began, or could have begun.
    """
    if timeout is None:
        return timedelta(0)
    return max(timedelta(0), timeout + settle - since)


NO_DOUBT = -1
"""The position of the doubt that was looked at when there was none."""

RETURNED = "returned"
RAISED = "raised"
LATE = frozenset({RETURNED, RAISED})
"""Outcomes of a `Resolution` that says how an attempt ended in a worker which had lost its run: with `value`, or with `failure`."""


class Resolution(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an operator, or the relay, established about an operation; the body of an inbox item.

    Args:
        generation: Of the run that was looked at; another one's operation is not meant.
        outcome: `applied` (with `value`), `not_applied`, `failed` (with `failure`), or `compensate` (with `value` where the compensation
            takes the result). A worker that has lost the run says of an attempt that ended late: `returned` (with `value`) or
            `raised` (with `failure`). The relay says of other runs: `started`,
            `refused` (with `failure`), `ended` (with `status`), `sent`, `unsent` (with `failure`).
        value: JSON of the result.
        status: How another run ended.
        name: Of the step that is meant, where the speaker knows it: changed code may have another one at its operation.
        doubt: Position in the journal of the doubt that was looked at; another one's outcome is not meant. `NO_DOUBT` when none stood;
            None for whichever stands. Of the late end of an attempt: of the last doubt before it began, None for none.
    """

    operation: str
    generation: int
    outcome: str
    value: Raw = Raw(b"null")
    failure: Failure | None = None
    by: str = ""
    reason: str = ""
    status: str = ""
    name: str = ""
    doubt: int | None = None
