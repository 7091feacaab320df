"""What becomes of the record of a request, as a pure function of what is stored: one wording for every store.

Law: a record that has not ended goes by the word of whoever began it or of an operator, and never by the passing of time.
"""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from outlast.store.change import Applied, Conflict, Refused, Verdict
from outlast.store.request import (
    BeginRequest,
    EndRequest,
    HoldRequest,
    RequestRow,
    RequestState,
    ResolveRequest,
)

_AS_GOOD_AS_GONE = frozenset({RequestState.FREED, RequestState.EXPIRED})


def listed(row: RequestRow, now: datetime) -> RequestRow:
    """Return a stored record with the state that it has at that time."""
    state = row.state
    if row.expires_at is not None and now >= row.expires_at:
        state = RequestState.EXPIRED
    elif state is RequestState.RUNNING and now >= row.held_until:
        state = RequestState.IN_DOUBT
    return row if state is row.state else replace(row, state=state)


def settle(
    row: RequestRow | None,
    change: BeginRequest | HoldRequest | EndRequest | ResolveRequest,
    now: datetime,
) -> tuple[Verdict, RequestRow | None]:
    """Return the verdict on a change, and the record as it stands afterwards: `row` itself where nothing is to be written.

    Args:
        row: As it is stored; None when there is none.
        now: The store's time.
    """
    match change:
        case BeginRequest():
            return _begin(row, change, now)
        case HoldRequest():
            return _hold(row, change, now)
        case EndRequest():
            return _end(row, change, now)
        case ResolveRequest():
            return _resolve(row, change, now)


def _begin(
    row: RequestRow | None, change: BeginRequest, now: datetime
) -> tuple[Verdict, RequestRow | None]:
    standing = None if row is None else listed(row, now)
    if standing is not None and standing.state not in _AS_GOOD_AS_GONE:
        if standing.token != change.token:
            return Conflict(request=standing), row
        return Applied(standing.started_at, request=standing), row
    begun = RequestRow(
        tenant=change.tenant,
        request_id=change.request_id,
        fingerprint=change.fingerprint,
        token=change.token,
        state=RequestState.RUNNING,
        started_at=now,
        held_until=now + change.hold,
        keep=change.keep,
        note=change.note,
    )
    return Applied(now, request=begun), begun


def _hold(
    row: RequestRow | None, change: HoldRequest, now: datetime
) -> tuple[Verdict, RequestRow | None]:
    if row is None or row.token != change.token or row.state is not RequestState.RUNNING:
        return _conflict(row, now), row
    held = replace(row, held_until=now + change.hold)
    return Applied(now, request=held), held


def _end(
    row: RequestRow | None, change: EndRequest, now: datetime
) -> tuple[Verdict, RequestRow | None]:
    if row is None or row.token != change.token:
        # Its record goes: it has gone already.
        return (_conflict(row, now) if change.happened else Applied(now)), row
    if row.state is RequestState.DONE:
        is_same = row.resolved_at is None or row.answer == change.answer
        if change.happened and is_same:
            return Applied(now, request=listed(row, now)), row
        return _conflict(row, now), row
    if change.happened:
        done = replace(
            row, state=RequestState.DONE, answer=change.answer, expires_at=now + change.keep
        )
        return Applied(now, request=done), done
    return Applied(now), (row if row.state is RequestState.FREED else None)


def _resolve(
    row: RequestRow | None, change: ResolveRequest, now: datetime
) -> tuple[Verdict, RequestRow | None]:
    state = None if row is None else listed(row, now).state
    if row is None or state is None or state is RequestState.EXPIRED:
        return Refused("unknown", change.request_id), row
    if row.token != change.token:
        return Refused("mismatch", change.request_id), row
    resolved = RequestState.DONE if change.happened else RequestState.FREED
    if state is resolved and row.resolved_at is not None and _is_said_again(row, change):
        return Applied(row.resolved_at, request=row), row
    if state is not RequestState.IN_DOUBT and not _is_corrected(row, change):
        return Refused(state.value, change.request_id), row
    after = replace(
        row,
        state=resolved,
        answer=change.answer if change.happened else b"",
        expires_at=now + row.keep,
        by=change.by,
        reason=change.reason,
        resolved_at=now,
    )
    return Applied(now, request=after), after


def _is_said_again(row: RequestRow, change: ResolveRequest) -> bool:
    is_same = change.corrects is None or row.answer == change.answer
    return is_same and (row.by, row.reason) == (change.by, change.reason)


def _is_corrected(row: RequestRow, change: ResolveRequest) -> bool:
    """Whether another answer replaces the one that an operator gave, and that was seen."""
    is_seen = change.corrects is not None and row.resolved_at == change.corrects
    return row.state is RequestState.DONE and is_seen and change.happened


def _conflict(row: RequestRow | None, now: datetime) -> Conflict:
    return Conflict(request=None if row is None else listed(row, now))
