"""What may be done about an effect whose attempt ended without a known outcome.

The three declarations, the three answers of a probe, and the arithmetic of assumption A: no attempt acts later than its
`start_to_close_timeout` plus `settle` after its start. Pure: who calls this knows the clock.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Applied(Generic[T]):
    """A probe's answer: the effect happened, and this is its result."""

    value: T


@dataclass(frozen=True, slots=True)
class NotApplied:
    """A probe's answer: the effect did not happen, and no attempt of it is under way."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A probe's answer: the remote system cannot say."""

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


class Resolution(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an operator established about an operation; the body of an inbox item.

    Args:
        generation: Of the run that was looked at; another one's operation is not meant.
        outcome: `applied` (with `value`), `not_applied`, or `failed` (with `failure`).
        value: JSON of the result.
        name: Of the step that is meant, where the speaker knows it: changed code may have another one at its operation.
    """

    operation: str
    generation: int
    outcome: str
    value: Raw = Raw(b"null")
    failure: Failure | None = None
    by: str = ""
    reason: str = ""
    name: str = ""
