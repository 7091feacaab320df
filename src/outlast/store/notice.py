"""Word that people get of a request: one row for each time that they are told of it, and the changes of such a row.

The store writes the rows itself, with the request: one for the asking, one for each reminder that falls before its end. They go when it is
decided, edited, expired or withdrawn, or its run ends: a store for which nobody sends anything holds no more of them than requests that
wait. Who sends takes a row first, for a while: no two send it at once, and what a sender leaves behind that dies is due again.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Literal, TypeAlias

from msgspec import Struct

from outlast.journal.entry import PAYLOAD, PLAIN

ASKED = "asked"
"""The notice that says that somebody is asked. Those that remind are `reminder-1`, `reminder-2`, …"""

NoticeState: TypeAlias = Literal["open", "sent", "failed"]
"""To be sent, or sent again; sent; given up."""

MAX_TROUBLE_BYTES = 2048
"""Of what went wrong so much is kept."""


class NoticeRow(Struct, frozen=True):
    """One time that people are told of a request.

    Args:
        generation: Of the run, when it asked.
        notice: `asked`, or which reminder.
        due_at: Not to be sent before this; while somebody has taken it, until when he has it.
        expires_at: Of the request: not to be sent any more.
        tries: How often it was taken.
        reached: Names of the channels that have it already.
        trouble: Why the last try failed, for people; empty when none did.
    """

    tenant: Annotated[str, PLAIN]
    run_id: Annotated[str, PLAIN]
    generation: Annotated[int, PLAIN]
    approval_id: Annotated[str, PLAIN]
    notice: Annotated[str, PLAIN]
    due_at: Annotated[datetime, PLAIN]
    expires_at: Annotated[datetime, PLAIN]
    tries: Annotated[int, PLAIN] = 0
    state: Annotated[NoticeState, PLAIN] = "open"
    reached: Annotated[tuple[str, ...], PLAIN] = ()
    trouble: Annotated[bytes, PAYLOAD] = b""


class TakeNotices(Struct, frozen=True, tag="take_notices"):
    """Take up to `limit` notices that are due and that nobody has, the longest due first; the verdict brings them (`Applied.notices`).

    Those whose request does not wait any more, or whose time is over, go in passing, and count as taken.

    Args:
        tenant: Whose; empty for those of all tenants.
        hold: For how long nobody else gets them.
    """

    tenant: Annotated[str, PLAIN]
    limit: Annotated[int, PLAIN]
    hold: Annotated[timedelta, PLAIN]


class EndNotice(Struct, frozen=True, tag="end_notice"):
    """Say what became of a notice that was taken.

    That it was sent counts whoever says so: what has arrived is not sent again. That it was not counts for the last one who took it. Refused
    with `unknown` when there is no such notice (any more), and with `taken` when somebody else has taken it since.

    Args:
        tries: As the sender took it.
        reached: Names of the channels that have it, also of those that had it before.
        retry_in: When it is due again; None, or not before the request's end, gives it up.
        trouble: Why it could not be sent, for people, without secrets.
    """

    tenant: Annotated[str, PLAIN]
    run_id: Annotated[str, PLAIN]
    generation: Annotated[int, PLAIN]
    approval_id: Annotated[str, PLAIN]
    notice: Annotated[str, PLAIN]
    tries: Annotated[int, PLAIN]
    sent: Annotated[bool, PLAIN]
    reached: Annotated[tuple[str, ...], PLAIN] = ()
    retry_in: Annotated[timedelta | None, PLAIN] = None
    trouble: Annotated[bytes, PAYLOAD] = b""


NoticeChange: TypeAlias = TakeNotices | EndNotice
