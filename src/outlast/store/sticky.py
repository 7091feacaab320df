"""Decisions that stick: each is a row, made with a decision on one request, that answers what is asked later of the same kind.

A yes that sticks answers a request as a vote that is put with it (`Vote.sticky`), and the store counts that use in the same change. A no
that sticks answers nothing by itself: whoever asks looks for it first. Each row that is made or revoked moves the tenant's control row
`sticky` to its next version, so that a change can rest on what was found.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

from msgspec import Struct

from outlast.journal.asking import Reach
from outlast.journal.entry import PAYLOAD, PLAIN

STICKY = "sticky"
"""The control row whose version counts what was made and revoked in a tenant. It has no body."""


class StickyPut(Struct, frozen=True):
    """What is to stick, as a part of the decision that it is made with.

    Args:
        sticky_id: Unique in the tenant.
        effect: The effect that it is about, and so of the others: the calls of one version, in the name of one agent, of one server.
        reach: How far.
        turn: For `turn`: which one of the run.
        action_sha256: Of the one action that it is about; empty where `where` and `when` say of which.
        where: JSON object: the canonical JSON of arguments by name, each of which a call must have.
        when: JSON array of predicates, each `[path, operator, value]`.
        uses: How many requests it answers; None for any number.
        expires_in: How long it sticks, counted from the decision; None for as long as its reach lasts.
        reason: Why, as the decision says.
    """

    sticky_id: Annotated[str, PLAIN]
    effect: Annotated[str, PLAIN]
    reach: Annotated[Reach, PLAIN]
    version: Annotated[str, PLAIN] = ""
    agent: Annotated[str, PLAIN] = ""
    server: Annotated[str, PLAIN] = ""
    turn: Annotated[str, PLAIN] = ""
    action_sha256: Annotated[str, PLAIN] = ""
    where: Annotated[bytes, PAYLOAD] = b"{}"
    when: Annotated[bytes, PAYLOAD] = b"[]"
    uses: Annotated[int | None, PLAIN] = None
    expires_in: Annotated[timedelta | None, PLAIN] = None
    reason: Annotated[bytes, PAYLOAD] = b""


class StickyRow(Struct, frozen=True):
    """A decision that sticks, as it stands.

    Args:
        incarnation: Of the run, when it was made: the generation with which that began.
        workflow: Of the run.
        approval_id: The request that was decided.
        role: In which it was decided.
        expires_at: It does not stick from then on; None for no such time.
        uses: How many requests it may still answer; None for any number.
        used: How many it has answered.
        revoked_at: When it was taken back; None while it was not.
    """

    tenant: Annotated[str, PLAIN]
    sticky_id: Annotated[str, PLAIN]
    run_id: Annotated[str, PLAIN]
    incarnation: Annotated[int, PLAIN]
    workflow: Annotated[str, PLAIN]
    approval_id: Annotated[str, PLAIN]
    role: Annotated[str, PLAIN]
    approved: Annotated[bool, PLAIN]
    by: Annotated[str, PLAIN]
    behalf: Annotated[str, PLAIN]
    made_at: Annotated[datetime, PLAIN]
    put: Annotated[StickyPut, PLAIN]
    expires_at: Annotated[datetime | None, PLAIN] = None
    uses: Annotated[int | None, PLAIN] = None
    used: Annotated[int, PLAIN] = 0
    revoked_at: Annotated[datetime | None, PLAIN] = None
    revoked_by: Annotated[str, PLAIN] = ""
    revoked_why: Annotated[bytes, PAYLOAD] = b""

    @property
    def key(self) -> tuple[datetime, str]:
        """By which rows are listed."""
        return self.made_at, self.sticky_id

    def sticks(self, now: datetime) -> bool:
        """Whether it still does, as far as the row can say: what has become of its run it does not."""
        is_over = self.expires_at is not None and now >= self.expires_at
        return self.revoked_at is None and self.uses != 0 and not is_over
