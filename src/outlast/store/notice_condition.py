"""What a notice becomes, as pure functions of what is stored: one wording for every store."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec.structs import replace

from outlast.store.change import ApprovalRow, Refused
from outlast.store.condition import PENDING
from outlast.store.notice import ASKED, MAX_TROUBLE_BYTES, EndNotice, NoticeRow


def notices_of(row: ApprovalRow, generation: int) -> tuple[NoticeRow, ...]:
    """Return the notices of a request that was just made: none when nobody has to decide on it any more.

    Args:
        generation: Of the run.
    """
    if row.state != PENDING:
        return ()
    put = row.put
    lasts = put.expires_at - row.requested_at
    remind = () if put.terms is None else put.terms.remind
    times = [(ASKED, timedelta(0)), *((f"reminder-{n}", one) for n, one in enumerate(remind, 1))]
    return tuple(
        NoticeRow(
            tenant=row.run.tenant,
            run_id=row.run.run_id,
            generation=generation,
            approval_id=put.approval_id,
            notice=name,
            due_at=row.requested_at + after,
            expires_at=put.expires_at,
        )
        for name, after in times
        if after < lasts
    )


def is_over(row: NoticeRow, now: datetime) -> bool:
    """Whether it is too late to tell anybody."""
    return now >= row.expires_at


def taken(row: NoticeRow, hold: timedelta, now: datetime) -> NoticeRow:
    """Return a notice that somebody has from now on."""
    return replace(row, due_at=now + hold, tries=row.tries + 1)


def ended(row: NoticeRow | None, change: EndNotice, now: datetime) -> NoticeRow | Refused:
    """Return a notice after a sender has said what became of it, or why that does not count."""
    if row is None:
        return Refused("unknown", change.notice)
    if row.state == "sent":
        return row
    if change.sent:
        return replace(row, state="sent", reached=change.reached, trouble=b"")
    if row.tries != change.tries or row.state != "open":
        return Refused("taken", change.notice)
    trouble = change.trouble[:MAX_TROUBLE_BYTES]
    row = replace(row, reached=change.reached, trouble=trouble)
    if change.retry_in is None or now + change.retry_in >= row.expires_at:
        return replace(row, state="failed")
    return replace(row, due_at=now + change.retry_in)
