"""What the end of a body is to its run: what it came to, judged from how its code ended."""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from outlast.errors import ApprovalExpiredError
from outlast.journal.entry import Cancelled, Completed, ContinuedAsNew, Failed
from outlast.journal.failure import capture

Outcome: TypeAlias = Completed | Failed | Cancelled | ContinuedAsNew

CONTINUED = "continued as new"
"""The word for a body that goes on in a new generation: what it has not handled is handled there."""


def cancelled() -> Cancelled:
    """Return the end of a run that was cancelled."""
    return Cancelled(failure=capture(asyncio.CancelledError("the run was cancelled")))


def ended_by(error: BaseException) -> Failed | Cancelled:
    """An approval that nobody gave cancels the run, also out of a group of tasks; anything else fails it."""
    failure = capture(error)
    return Cancelled(failure=failure) if _is_expiry(error) else Failed(failure=failure)


def _is_expiry(error: BaseException) -> bool:
    """Whether it is nothing but approvals that nobody gave; without recursion, since an author's groups may be of any depth."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        members: tuple[BaseException, ...] | None = getattr(each, "exceptions", None)
        if isinstance(each, BaseExceptionGroup) and members:
            waiting.extend(members)
        elif not isinstance(each, ApprovalExpiredError):
            return False
    return True


def word_of(outcome: Outcome) -> str:
    """Return an outcome in words, as in `the run completed`."""
    kind = type(outcome).__name__.lower()
    return CONTINUED if isinstance(outcome, ContinuedAsNew) else kind
