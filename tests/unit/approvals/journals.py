"""Journals of approvals, written by hand: what a run's owner records, entry by entry, a minute apart."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Raw

from outlast.approvals.drawing import receipt_of
from outlast.approvals.evidence import Place
from outlast.approvals.proof import prove
from outlast.approvals.receipt import Receipt
from outlast.approvals.request import subject_of
from outlast.journal.asking import Edited, Rung, Terms
from outlast.journal.canonical import canonical, sha256_of
from outlast.journal.entry import (
    ApprovalDecided,
    ApprovalEdited,
    ApprovalExpired,
    ApprovalRequested,
    ApprovalVoted,
    Cover,
    EffectCompleted,
    EffectIntended,
    Entry,
    GrantUse,
    OperationId,
    StampedRow,
    Started,
    to_row,
)

T0 = datetime(2026, 1, 31, 12, tzinfo=UTC)
PLACE = Place("default", "run-1", 1)
HOUR = timedelta(hours=1)
TERMS = Terms("boss", HOUR)
STARTED = Started("bill", Raw(b'{"secret":"of the run"}'), b"seed-seed-seed-s", "run-1", "ann")


def journal(*entries: Entry) -> list[StampedRow]:
    """Return the rows of a run that has begun and recorded these."""
    return [
        StampedRow(to_row(each, seq, seq), T0 + timedelta(minutes=seq))
        for seq, each in enumerate((STARTED, *entries))
    ]


def action(effect: str, arguments: dict[str, Any], version: str = "") -> str:
    """Return the hash of a call."""
    return sha256_of({"effect": effect, "version": version, "arguments": arguments})


def asked(
    approval_id: str = "1~r:1",
    operation: str = "r:1",
    amount: int = 5,
    *,
    where: dict[str, Any] | None = None,
    terms: Terms | None = TERMS,
    **given: Any,
) -> ApprovalRequested:
    """Return a request for `pay(amount)`, or for the calls of a pattern."""
    shown = {"amount": amount} if where is None else where
    fields = {name: canonical(value).decode() for name, value in shown.items()}
    cover = Cover("pay", action("pay", shown)) if where is None else Cover("pay", where=fields)
    subject = subject_of(b'"pay it"', [(cover, fields)])
    role = "boss" if terms is None else terms.rung(given.get("rung", 0)).role
    return ApprovalRequested(
        OperationId(operation), approval_id, role, subject.body, subject.sha256, (cover,),
        given.pop("expires_at", T0 + HOUR), given.pop("use_by", T0 + 2 * HOUR), terms=terms, requesters=("ann",), **given,
    )  # fmt: skip


def said(
    request: ApprovalRequested, by: str = "bob", *, yes: bool = True, **given: Any
) -> ApprovalDecided:
    """Return the decision on a request."""
    fields = {"subject_sha256": request.subject_sha256, "decided_at": T0 + timedelta(minutes=2)}
    return ApprovalDecided(
        request.operation, request.approval_id, yes, by, "because", **{**fields, **given}
    )


def voted(request: ApprovalRequested, by: str, behalf: str = "") -> ApprovalVoted:
    """Return a vote on a request."""
    return ApprovalVoted(
        request.operation, request.approval_id, by, T0 + timedelta(minutes=2), "", behalf
    )


def edited(request: ApprovalRequested, by: str, amount: int) -> ApprovalEdited:
    """Return an edit of the one call that a request covers."""
    edit = Edited(0, Raw(msgspec.json.encode({"amount": amount})))
    return ApprovalEdited(
        request.operation, request.approval_id, by, T0 + timedelta(minutes=2), (edit,)
    )


def expired(request: ApprovalRequested) -> ApprovalExpired:
    """Return that nobody decided on a request."""
    return ApprovalExpired(request.operation, request.approval_id)


def intended(operation: str = "r:2", amount: int = 5, **given: Any) -> EffectIntended:
    """Return the intent of `pay(amount)`, which spends the first request's cover unless something else is given."""
    arguments = Raw(msgspec.json.encode({"amount": amount}))
    if "asked" not in given:
        given.setdefault("grant", GrantUse("1~r:1", 0))
    hashed = given.pop("action_sha256", action("pay", {"amount": amount}))
    return EffectIntended(
        OperationId(operation), "pay", "k" * 32, arguments, arguments, hashed, **given
    )


def paid(operation: str = "r:2") -> EffectCompleted:
    """Return that the effect happened."""
    return EffectCompleted(OperationId(operation), "pay", Raw(b'{"paid":"secretly"}'))


def receipt(*entries: Entry, approval_id: str = "1~r:1", **given: Any) -> Receipt:
    """Return the receipt of a request of such a run."""
    return receipt_of(journal(*entries), PLACE, approval_id, **given)


def broken(found: Receipt) -> dict[str, str]:
    """Return what is broken in a receipt, by the names of the checks."""
    return {one.name: one.text for one in prove(found) if one.verdict == "broken"}


ESCALATING = Terms("boss", HOUR, use_within=2 * HOUR, escalate=(Rung("chief", HOUR),))


def escalated() -> list[Entry]:
    """Return a request that nobody answered, and the one that followed."""
    first = asked(terms=ESCALATING, expires_at=T0 + timedelta(minutes=2))
    second = asked("1~r:1#2", terms=ESCALATING, rung=1, again="escalated")
    return [first, expired(first), second, said(second, "eve")]
