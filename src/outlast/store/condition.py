"""The conditions under which changes hold, as pure functions of what is stored: one wording for every store.

A function answers with the stable word of a refusal, or with an empty string. It reads nothing and writes nothing, so that
the stores can differ in how they keep rows and not in what they accept.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from itertools import pairwise

from msgspec.structs import replace

from outlast.store.change import (
    ApprovalExpire,
    ApprovalPut,
    ApprovalRow,
    ApprovalWithdraw,
    Change,
    Decide,
    GrantSpend,
    HeadUpdate,
    Message,
    MessageKind,
    PutControl,
    PutMessage,
    Refused,
    RunChange,
    StartRun,
    Status,
    Terminate,
)
from outlast.store.request import PurgeRequests, RequestChange

PENDING = "pending"
APPROVED = "approved"
DENIED = "denied"
EXPIRED = "expired"
WITHDRAWN = "withdrawn"


MAX_UNFIT_BUILDS = 100
"""More are not remembered: the oldest is forgotten first. So many builds never live at once."""


def place_of(change: Change) -> tuple[str, str]:
    """Return by what changes are put in order: one order in which every store judges and locks."""
    if isinstance(change, PutControl | PurgeRequests):
        return change.tenant, ""
    if isinstance(change, RequestChange):
        return change.tenant, change.request_id
    return change.run.tenant, change.run.run_id


def start_times(change: StartRun, at: datetime) -> tuple[datetime, ...] | Refused:
    """Return the time of each entry of a start, or why those that it brings along do not hold.

    Args:
        at: The time of the commit.
    """
    given = (*change.times, *[at] * (len(change.entries) - len(change.times)))
    if len(given) > len(change.entries) or any(a > b for a, b in pairwise((*given, at))):
        return Refused("times")
    return given


def owned_times(
    change: RunChange, now: datetime, changed_at: datetime
) -> tuple[tuple[datetime, ...], datetime] | Refused:
    """Return the time of each entry of an owned change and that of the change, or why those that it brings along do not hold.

    A wall clock that was set back since they were taken is no reason to refuse them: the journal's time does not go back with it.

    Args:
        now: The store's time.
        changed_at: The head's.
    """
    given = change.times
    if len(given) > len(change.entries) or any(a > b for a, b in pairwise((changed_at, *given))):
        return Refused("times")
    last = given[-1] if given else changed_at
    is_dated = bool(given) and len(given) == len(change.entries) and change.head is None
    at = last if is_dated else max(now, last)
    return (*given, *[at] * (len(change.entries) - len(given))), at


def unfit_after(builds: tuple[str, ...], change: RunChange) -> tuple[str, ...]:
    """Return the builds that are known not to fit a run after `change`, newest last; `builds` are those known before."""
    known = () if change.entries else builds
    head = change.head
    if head is None or not head.release or not head.unfit_build:
        return known
    others = tuple(build for build in known if build != head.unfit_build)
    return (*others, head.unfit_build)[-MAX_UNFIT_BUILDS:]


RECALLS = frozenset({MessageKind.RESUME, MessageKind.CANCEL})
"""The messages that end a pause. A paused run is offered for one of these, and for nothing else."""

HISTORY = "history"
"""The reason of a run that is blocked because its journal has come to the limit."""

LIFTING = frozenset({MessageKind.ACCEPT, MessageKind.CANCEL, MessageKind.RESOLUTION})
"""The messages for which such a run is offered. All others wait with it: each look at a journal of that length is dear."""

KNOWN_MESSAGES = 10_000
"""So many messages of a run are known by their ids after they were consumed and the run has rolled over; of older ones only updates that
the run has yet to answer."""


def offers(status: Status, reason: str, kind: MessageKind) -> bool:
    """Return whether a message of that kind offers a run of that status that nobody owns."""
    if status is Status.PAUSED:
        return kind in RECALLS
    return status is not Status.BLOCKED or reason != HISTORY or kind in LIFTING


def next_refusal(change: RunChange) -> str:
    """Return why the roll-over that a change asks for does not hold: `next`."""
    if not change.next:
        return ""
    head = change.head
    is_given_back = head is not None and head.release and head.status is Status.READY
    in_order = [row.seq for row in change.next] == list(range(len(change.next)))
    return "" if is_given_back and in_order and change.next[0].name else "next"


def due_from(head: HeadUpdate, *, calls: bool, recalled: bool, now: datetime) -> datetime | None:
    """Return since or from when a run that is given back with `head` can go on by itself; None when it cannot.

    Args:
        calls: Whether there are messages that offer the run.
        recalled: Whether one of them ends a pause.
    """
    if head.status.closed:
        return None
    if head.status is Status.PAUSED:
        return now if recalled else None
    if calls or head.unfit_build or head.status in (Status.READY, Status.RUNNING):
        return now
    return head.wake_at


def stranger_refusal(
    change: PutMessage | Terminate, *, generation: int, incarnation: int, origin: str
) -> str:
    """Return why a message or a termination is for another run than the one that has the id: `generation`, `incarnation` or `origin`.

    Args:
        generation: Of the run that has it; so are the others.
    """
    if isinstance(change, PutMessage) and change.generation not in (0, generation):
        return "generation"
    if change.incarnation not in (0, incarnation):
        return "incarnation"
    return "" if change.origin in ("", origin) else "origin"


def is_other(message: Message, digest: str) -> bool:
    """Whether a message says something else than the one that is known under its id, which has this digest."""
    return bool(message.digest and digest) and message.digest != digest


def spend_refusal(row: ApprovalRow | None, spend: GrantSpend, now: datetime) -> str:
    """Return why `spend` does not hold: `expired`, `mismatch`, `unapproved` or `spent`, in this order."""
    if row is None:
        return "unapproved"
    if now >= row.put.use_by:
        return "expired"
    covers = row.put.covers
    if not 0 <= spend.cover < len(covers) or covers[spend.cover].match_sha256 != spend.match_sha256:
        return "mismatch"
    if row.state != APPROVED:
        return "unapproved"
    if row.spent[spend.cover] not in ("", spend.operation):
        return "spent"
    return ""


def decision_refusal(row: ApprovalRow | None, decision: Decide, now: datetime) -> str:
    """Return why `decision` does not hold: `unknown`, `decided`, `withdrawn`, `expired` or `mismatch`."""
    if row is None:
        return "unknown"
    if row.state in (APPROVED, DENIED):
        return "decided"
    if row.state == WITHDRAWN:
        return "withdrawn"
    if row.state == EXPIRED or now >= row.put.expires_at:
        return "expired"
    return "" if decision.seen_sha256 == row.put.subject_sha256 else "mismatch"


def expiry_refusal(row: ApprovalRow | None, now: datetime) -> str:
    """Return why a request cannot be closed as expired: `unknown`, `decided` or `not_due`."""
    if row is None:
        return "unknown"
    if row.state in (APPROVED, DENIED):
        return "decided"
    return "not_due" if row.state == PENDING and now < row.put.expires_at else ""


def listed_state(row: ApprovalRow, now: datetime) -> str:
    """Return the state that lists show: a pending request past its time is `expired`, whoever has closed it."""
    return EXPIRED if row.state == PENDING and now >= row.put.expires_at else row.state


def settle_approvals(
    change: RunChange, find: Callable[[str], ApprovalRow | None], now: datetime, at: datetime
) -> dict[str, ApprovalRow] | Refused:
    """Return the approvals that `change` writes, as they stand afterwards, or why it does not hold.

    Args:
        find: Returns an approval of the run's current generation by its id.
        now: The store's time, by which deadlines are judged.
        at: The time of the change's entries.
    """
    after: dict[str, ApprovalRow] = {}
    for act in change.approvals:
        row = after.get(act.approval_id) or find(act.approval_id)
        outcome = _act_on(change, act, row, now, at)
        if isinstance(outcome, str):
            return Refused(outcome, act.approval_id)
        after[act.approval_id] = outcome
    for spend in change.spends:
        row = after.get(spend.approval_id) or find(spend.approval_id)
        refusal = spend_refusal(row, spend, now)
        if refusal or row is None:
            return Refused(refusal, spend.approval_id)
        spent = (*row.spent[: spend.cover], spend.operation, *row.spent[spend.cover + 1 :])
        after[spend.approval_id] = replace(row, spent=spent)
    return after


def _act_on(
    change: RunChange,
    act: ApprovalPut | ApprovalExpire | ApprovalWithdraw,
    row: ApprovalRow | None,
    now: datetime,
    at: datetime,
) -> ApprovalRow | str:
    if isinstance(act, ApprovalPut):
        if row is not None:
            return "exists"
        return ApprovalRow(change.run, act, PENDING, ("",) * len(act.covers), at)
    if row is None:
        return "unknown"
    if isinstance(act, ApprovalExpire):
        refusal = expiry_refusal(row, now)
        if refusal:
            return refusal
    if row.state != PENDING:
        return row
    return replace(row, state=EXPIRED if isinstance(act, ApprovalExpire) else WITHDRAWN)
