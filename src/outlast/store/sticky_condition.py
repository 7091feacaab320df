"""The conditions under which a decision may stick, and under which one that does answers a request: pure functions of what is stored."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from outlast.journal.asking import Reach, Terms, Vote
from outlast.store.change import ApprovalPut, ApprovalRow, Decide, RevokeSticky, RunKey
from outlast.store.sticky import StickyPut, StickyRow
from outlast.store.voter import is_kept_out

StickyRun: TypeAlias = tuple[RunKey, int, str]
"""A run: its key, the generation that began its incarnation, and its workflow."""

FindSticky: TypeAlias = Callable[[str], StickyRow | None]
"""Returns a decision of the tenant by its id."""


class StickyFilter(Struct, frozen=True):
    """Which decisions are listed, in the order in which they were made.

    Args:
        run: Those that reach this run as it is now: its own, or of its workflow. None for all of the tenant.
        effect: About this effect; empty for any.
        sticky_id: The one of this id; empty for any.
        over: Those that do not stick any more, too.
        limit: So many at most; None for all.
        after: The `key` of the last one of the page before.
    """

    run: RunKey | None = None
    effect: str = ""
    over: bool = False
    limit: int | None = None
    after: tuple[datetime, str] | None = None
    sticky_id: str = ""

    def takes(self, row: StickyRow, run: StickyRun | None, now: datetime) -> bool:
        """Whether a decision is one of them.

        Args:
            run: The one that is asked for, as it is now; None where there is no such run.
        """
        if self.run is not None and (run is None or not reaches(row, run)):
            return False
        if self.sticky_id not in ("", row.sticky_id):
            return False
        if self.effect not in ("", row.put.effect) or not (self.over or row.sticks(now)):
            return False
        return self.after is None or row.key > self.after


def sticky_refusal(row: ApprovalRow, decision: Decide) -> str:
    """Return `sticky` where a decision may not stick as it says; empty where it may, or says nothing of that.

    A no may always stick. A yes may where the terms let it, so far, where it is the only one that is needed (one person's yes is no yes of
    several), and where those are asked whom the terms name first.
    """
    put = decision.sticky
    if put is None:
        return ""
    terms, covers = row.put.terms, row.put.covers
    is_of_one_call = len(covers) == 1 and covers[0].effect == put.effect
    if decision.edit or row.put.kind != "approval" or not is_of_one_call:
        return "sticky"
    if not decision.approved:
        return ""
    # Whoever was asked later, in another role, is not whom the next request asks.
    may = terms is not None and _may(terms, put.reach) and terms.role == row.put.role
    return "" if may else "sticky"


def _may(terms: Terms, reach: Reach) -> bool:
    return terms.may_stick(reach) and terms.quorum <= 1


def stuck(
    put: StickyPut, decision: Decide, row: ApprovalRow, run: StickyRun, now: datetime
) -> StickyRow:
    """Return the row of a decision that holds, made now."""
    key, incarnation, workflow = run
    return StickyRow(
        tenant=key.tenant,
        sticky_id=put.sticky_id,
        run_id=key.run_id,
        incarnation=incarnation,
        workflow=workflow,
        approval_id=decision.approval_id,
        role=row.put.role,
        approved=decision.approved,
        by=decision.by,
        behalf=decision.behalf,
        made_at=now,
        put=put,
        expires_at=None if put.expires_in is None else now + put.expires_in,
        uses=put.uses,
    )


def reaches(row: StickyRow, run: StickyRun) -> bool:
    """Whether a decision reaches a run of its tenant."""
    key, incarnation, workflow = run
    if row.put.reach == "workflow":
        return row.workflow == workflow
    return (row.run_id, row.incarnation) == (key.run_id, incarnation)


def used(
    row: StickyRow | None, vote: Vote, put: ApprovalPut, run: StickyRun, now: datetime
) -> StickyRow | None:
    """Return a decision after it has answered a request; None where it does not.

    Args:
        put: The request, with a vote that rests on it.
    """
    if row is None or not (row.approved and row.sticks(now) and reaches(row, run)):
        return None
    terms = put.terms
    is_asked = (put.role, [one.effect for one in put.covers]) == (row.role, [row.put.effect])
    if not is_asked or terms is None or not _may(terms, row.put.reach) or vote != vote_of(row):
        return None
    persons = {row.by} | {row.behalf} - {""}
    if is_kept_out(
        persons, four_eyes=terms.four_eyes, requesters=put.requesters, barred=put.barred
    ):
        return None
    left = None if row.uses is None else row.uses - 1
    return replace(row, uses=left, used=row.used + 1)


def vote_of(row: StickyRow) -> Vote:
    """Return the vote that a yes is on a request that it answers."""
    return Vote(row.by, row.made_at, row.behalf, row.sticky_id, row.run_id, row.approval_id)


def revoked(row: StickyRow | None, change: RevokeSticky, now: datetime) -> StickyRow | str:
    """Return a decision after it was taken back, or why it cannot be: `unknown` or `revoked`."""
    if row is None:
        return "unknown"
    if row.revoked_at is not None:
        return "revoked"
    return replace(row, revoked_at=now, revoked_by=change.by, revoked_why=change.reason)
