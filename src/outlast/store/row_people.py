"""Rows of what people are asked and have said, and of requests under a key, as the values of the contract."""

from __future__ import annotations

from datetime import timedelta
from typing import cast, get_args

import msgspec

from outlast.errors import StoreCorruptError
from outlast.journal.asking import AskedFor, Reach, Terms, Vote
from outlast.store.change import ApprovalPut, ApprovalRow, CoverRow, RunKey
from outlast.store.condition import APPROVED, DENIED, EDITED, EXPIRED, PENDING, WITHDRAWN
from outlast.store.moment import from_micros, micros_or_none, time_or_none, to_micros
from outlast.store.notice import EndNotice, NoticeRow, NoticeState
from outlast.store.request import RequestRow, RequestState
from outlast.store.row import NEWER, Row
from outlast.store.sticky import StickyPut, StickyRow

APPROVAL = (
    "tenant, run_id, approval_id, operation, role, subject_sha256, expires_at, use_by, covers, spent, state,"
    " requested_at, decided_at, decided_by, body, terms, kind, persons, votes"
)
NOTICE = "tenant, run_id, generation, approval_id, notice, due_at, expires_at, tries, state, reached, trouble"
STICKY = (
    "tenant, sticky_id, run_id, incarnation, workflow, approval_id, role, approved, decided_by, behalf, made_at, "
    "effect, reach, version, agent, server, turn, action_sha256, args, predicates, uses_given, span, reason, "
    "expires_at, uses, used, revoked_at, revoked_by, revoked_why"
)
REQUEST = (
    "tenant, request_id, fingerprint, token, state, started_at, held_until, keep, expires_at, resolved_by, reason,"
    " resolved_at, note"
)
"""All but the answer, which comes last."""

_covers = msgspec.json.Decoder(tuple[CoverRow, ...])
_texts = msgspec.json.Decoder(tuple[str, ...])
_terms = msgspec.json.Decoder(Terms)
_votes = msgspec.json.Decoder(tuple[Vote, ...])
_persons = msgspec.json.Decoder(tuple[tuple[str, ...], tuple[str, ...]])
_KINDS: dict[str, AskedFor] = {"approval": "approval", "question": "question"}
_STATES = frozenset({PENDING, APPROVED, DENIED, EDITED, EXPIRED, WITHDRAWN})
_NOTICE_STATES: dict[str, NoticeState] = {"open": "open", "sent": "sent", "failed": "failed"}
_REACHES = frozenset(get_args(Reach))
_MICROSECOND = timedelta(microseconds=1)


def approval_of(row: Row) -> ApprovalRow:
    """Return the approval in the columns `APPROVAL`.

    Raises:
        StoreCorruptError: Nobody knows the kind, or the state: it is not taken for one that may be decided.
    """
    kind, state = _KINDS.get(row[16]), row[10]
    if kind is None or state not in _STATES:
        what = f"the kind {row[16][:40]!r}" if kind is None else f"the state {state[:40]!r}"
        raise StoreCorruptError(
            f"request {row[2]} has {what}, which this version does not know",
            run=row[1],
            hint=NEWER,
        )
    requesters, barred = _persons.decode(row[17])
    put = ApprovalPut(
        approval_id=row[2],
        operation=row[3],
        role=row[4],
        subject_sha256=row[5],
        expires_at=from_micros(row[6]),
        use_by=from_micros(row[7]),
        covers=_covers.decode(row[8]),
        body=row[14],
        terms=_terms.decode(row[15]) if row[15] else None,
        kind=kind,
        requesters=requesters,
        barred=barred,
    )
    return ApprovalRow(
        run=RunKey(row[0], row[1]),
        put=put,
        state=state,
        spent=_texts.decode(row[9]),
        requested_at=from_micros(row[11]),
        decided_at=time_or_none(row[12]),
        by=row[13],
        votes=_votes.decode(row[18]),
    )


def approval_values(row: ApprovalRow) -> Row:
    """Return the columns `APPROVAL` of an approval."""
    put = row.put
    return (
        row.run.tenant,
        row.run.run_id,
        put.approval_id,
        put.operation,
        put.role,
        put.subject_sha256,
        to_micros(put.expires_at),
        to_micros(put.use_by),
        msgspec.json.encode(put.covers).decode(),
        msgspec.json.encode(row.spent).decode(),
        row.state,
        to_micros(row.requested_at),
        micros_or_none(row.decided_at),
        row.by,
        put.body,
        "" if put.terms is None else msgspec.json.encode(put.terms).decode(),
        put.kind,
        msgspec.json.encode((put.requesters, put.barred)).decode(),
        msgspec.json.encode(row.votes).decode(),
    )


def notice_of(row: Row) -> NoticeRow:
    """Return the notice in the columns of the table."""
    state = _NOTICE_STATES.get(row[8])
    if state is None:
        raise StoreCorruptError(
            "a notice has a state that this version does not know",
            run=row[1],
            hint="open the file with the version that wrote it; `outlast doctor` looks for damage",
        )
    return NoticeRow(
        tenant=row[0],
        run_id=row[1],
        generation=row[2],
        approval_id=row[3],
        notice=row[4],
        due_at=from_micros(row[5]),
        expires_at=from_micros(row[6]),
        tries=row[7],
        state=state,
        reached=_texts.decode(row[9]),
        trouble=row[10],
    )


def notice_place(row: NoticeRow | EndNotice) -> tuple[str, str, int, str, str]:
    """Return the key of a notice."""
    return row.tenant, row.run_id, row.generation, row.approval_id, row.notice


def notice_values(row: NoticeRow) -> Row:
    """Return the columns `NOTICE` of a notice."""
    times = (to_micros(row.due_at), to_micros(row.expires_at))
    reached = msgspec.json.encode(row.reached).decode()
    return (*notice_place(row), *times, row.tries, row.state, reached, row.trouble)


def sticky_of(row: Row) -> StickyRow:
    """Return the decision in the columns.

    Raises:
        StoreCorruptError: It reaches as far as nobody knows.
    """
    if row[12] not in _REACHES:
        raise StoreCorruptError(
            f"decision {row[1]} sticks for {row[12][:40]!r}, which this version does not know",
            run=row[2],
            hint="the store was written by a newer version, or changed by hand: `outlast doctor`",
        )
    put = StickyPut(
        sticky_id=row[1],
        effect=row[11],
        reach=cast("Reach", row[12]),
        version=row[13],
        agent=row[14],
        server=row[15],
        turn=row[16],
        action_sha256=row[17],
        where=row[18],
        when=row[19],
        uses=row[20],
        expires_in=None if row[21] is None else timedelta(microseconds=row[21]),
        reason=row[22],
    )
    return StickyRow(
        tenant=row[0],
        sticky_id=row[1],
        run_id=row[2],
        incarnation=row[3],
        workflow=row[4],
        approval_id=row[5],
        role=row[6],
        approved=bool(row[7]),
        by=row[8],
        behalf=row[9],
        made_at=from_micros(row[10]),
        put=put,
        expires_at=time_or_none(row[23]),
        uses=row[24],
        used=row[25],
        revoked_at=time_or_none(row[26]),
        revoked_by=row[27],
        revoked_why=row[28],
    )


def sticky_values(row: StickyRow) -> Row:
    """Return the columns `STICKY` of a decision."""
    put = row.put
    return (
        row.tenant,
        row.sticky_id,
        row.run_id,
        row.incarnation,
        row.workflow,
        row.approval_id,
        row.role,
        int(row.approved),
        row.by,
        row.behalf,
        to_micros(row.made_at),
        put.effect,
        put.reach,
        put.version,
        put.agent,
        put.server,
        put.turn,
        put.action_sha256,
        put.where,
        put.when,
        put.uses,
        None if put.expires_in is None else put.expires_in // timedelta(microseconds=1),
        put.reason,
        micros_or_none(row.expires_at),
        row.uses,
        row.used,
        micros_or_none(row.revoked_at),
        row.revoked_by,
        row.revoked_why,
    )


def request_of(row: Row) -> RequestRow:
    """Return the record in the columns of the table."""
    return RequestRow(
        tenant=row[0],
        request_id=row[1],
        fingerprint=row[2],
        token=row[3],
        state=RequestState(row[4]),
        started_at=from_micros(row[5]),
        held_until=from_micros(row[6]),
        keep=timedelta(microseconds=row[7]),
        expires_at=time_or_none(row[8]),
        by=row[9],
        reason=row[10],
        resolved_at=time_or_none(row[11]),
        note=row[12],
        answer=row[13],
    )


def request_values(row: RequestRow) -> Row:
    """Return the columns `REQUEST` and the answer of a record."""
    return (
        row.tenant,
        row.request_id,
        row.fingerprint,
        row.token,
        row.state.value,
        to_micros(row.started_at),
        to_micros(row.held_until),
        row.keep // _MICROSECOND,
        micros_or_none(row.expires_at),
        row.by,
        row.reason,
        micros_or_none(row.resolved_at),
        row.note,
        row.answer,
    )
