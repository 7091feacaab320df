"""The conditions under which changes hold, as pure functions of what is stored: one wording for every store.

A function answers with the stable word of a refusal, or with an empty string. It reads nothing and writes nothing, so that
the stores can differ in how they keep rows and not in what they accept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from outlast.journal.asking import Vote
from outlast.store.change import (
    ApprovalExpire,
    ApprovalPut,
    ApprovalRow,
    ApprovalWithdraw,
    Change,
    Decide,
    GrantSpend,
    Guard,
    HeadUpdate,
    Message,
    MessageKind,
    Permit,
    PutControl,
    PutMessage,
    Refused,
    RevokeSticky,
    RunChange,
    StartRun,
    Status,
    Terminate,
)
from outlast.store.notice import EndNotice, TakeNotices
from outlast.store.request import PurgeRequests, RequestChange
from outlast.store.sticky import StickyRow
from outlast.store.sticky_condition import FindSticky, StickyRun, sticky_refusal, used
from outlast.store.voter import is_kept_out

Versions: TypeAlias = Callable[[str, str], int]
"""Returns the version of a control row, given tenant and name; 0 where there is none."""

PENDING = "pending"
APPROVED = "approved"
DENIED = "denied"
EDITED = "edited"
EXPIRED = "expired"
WITHDRAWN = "withdrawn"


MAX_UNFIT_BUILDS = 50
"""More are not remembered: the oldest is forgotten first. So many builds never live at once."""


def place_of(change: Change) -> tuple[str, str]:
    """Return by what changes are put in order: one order in which every store judges and locks.

    Changes of one place keep the order in which they are given. A control row comes before everything that belongs to its tenant, one of
    tenant `""` before everything else: what guards it is judged by the rows as the same commit leaves them.
    """
    if isinstance(change, PutControl | PurgeRequests | RevokeSticky | TakeNotices):
        return change.tenant, ""
    if isinstance(change, EndNotice):
        return change.tenant, change.run_id
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
    """Return why `spend` does not hold, whoever has it: `expired`, `mismatch` or `unapproved`, in this order."""
    if row is None:
        return "unapproved"
    if now >= row.put.use_by:
        return "expired"
    covers = row.put.covers
    if not 0 <= spend.cover < len(covers) or covers[spend.cover].match_sha256 != spend.match_sha256:
        return "mismatch"
    return "" if row.state == APPROVED else "unapproved"


def _unauthorised(permits: Sequence[Permit], now: datetime, version: Versions) -> Refused | None:
    """Return why what was asked does not count: `unauthorised`, or `aged`."""
    broken = broken_guard((one for permit in permits for one in permit.authority), version)
    if broken is not None:
        return Refused("unauthorised", broken.name)
    # A clock that was set back proves nothing.
    aged = (one for one in permits if not timedelta(0) <= now - one.checked_at <= one.within)
    oldest = next(aged, None)
    return None if oldest is None else Refused("aged", oldest.operation)


def _stopped(permits: Sequence[Permit], version: Versions) -> Refused | None:
    broken = broken_guard((one for permit in permits for one in permit.stops), version)
    return None if broken is None else Refused("stopped", broken.name)


def broken_guard(guards: Iterable[Guard], version: Versions) -> Guard | None:
    """Return the first guard that does not hold.

    Args:
        version: Returns the version of a control row, given tenant and name; 0 where there is none.
    """
    return next((one for one in guards if version(one.tenant, one.name) != one.version), None)


def decision_refusal(
    row: ApprovalRow | None, decision: Decide, now: datetime, version: Versions
) -> Refused | None:
    """Return why `decision` does not hold, by the first word of its list that fits."""
    word = _decision_refusal(row, decision, now)
    if not word and row is not None:
        word = sticky_refusal(row, decision)
    if word:
        return Refused(word, decision.approval_id)
    broken = broken_guard(decision.guards, version)
    return None if broken is None else Refused("stale", broken.name)


_OVER = {APPROVED: "decided", DENIED: "decided", EDITED: "edited", WITHDRAWN: "withdrawn"}


def _decision_refusal(row: ApprovalRow | None, decision: Decide, now: datetime) -> str:
    if row is None:
        return "unknown"
    if word := _OVER.get(row.state):
        return word
    if row.state == EXPIRED or now >= row.put.expires_at:
        return "expired"
    if decision.seen_sha256 != row.put.subject_sha256:
        return "mismatch"
    return _person_refusal(row, decision)


def _person_refusal(row: ApprovalRow, decision: Decide) -> str:
    """Return why this person may not say this: `role`, `self`, `voted` or `uneditable`."""
    if decision.role not in ("", row.put.role):
        return "role"
    if not (decision.approved or decision.edit):
        return ""
    if _is_self(row, decision):
        return "self"
    if decision.edit:
        terms = row.put.terms
        is_editable = terms is not None and terms.edits != "no" and not decision.approved
        return "" if is_editable else "uneditable"
    # Whoever is not named is one person, and nobody's delegate is nobody.
    voted = {vote.by for vote in row.votes} | {vote.behalf for vote in row.votes} - {""}
    return "voted" if _persons(decision) & voted else ""


def _persons(decision: Decide) -> set[str]:
    return {decision.by} | {decision.behalf} - {""}


def _is_self(row: ApprovalRow, decision: Decide) -> bool:
    """Whether it is said by one who may not say it, or nobody knows that it is not."""
    put = row.put
    has_four_eyes = put.terms is not None and put.terms.four_eyes
    return is_kept_out(
        _persons(decision), four_eyes=has_four_eyes, requesters=put.requesters, barred=put.barred
    )


def decided(row: ApprovalRow, decision: Decide, now: datetime) -> tuple[ApprovalRow, Message]:
    """Return the request after a decision that holds, and the message that says so."""
    row = _decided(row, decision, now)
    result = "vote" if row.state == PENDING else row.state
    return row, replace(decision.message, result=result)


def _decided(row: ApprovalRow, decision: Decide, now: datetime) -> ApprovalRow:
    if not decision.approved:
        state = EDITED if decision.edit else DENIED
        return replace(row, state=state, decided_at=now, by=decision.by)
    row = replace(row, votes=(*row.votes, Vote(decision.by, now, decision.behalf)))
    if not _is_enough(row):
        return row
    return replace(row, state=APPROVED, decided_at=now, by=decision.by)


def _is_enough(row: ApprovalRow) -> bool:
    quorum = 1 if row.put.terms is None else row.put.terms.quorum
    return len(row.votes) >= max(quorum, 1)


def expiry_refusal(row: ApprovalRow | None, now: datetime) -> str:
    """Return why a request cannot be closed as expired: `unknown`, `decided` or `not_due`."""
    if row is None:
        return "unknown"
    if row.state in (APPROVED, DENIED, EDITED):
        return "decided"
    return "not_due" if row.state == PENDING and now < row.put.expires_at else ""


def listed_state(row: ApprovalRow, now: datetime) -> str:
    """Return the state that lists show: a pending request past its time is `expired`, whoever has closed it."""
    return EXPIRED if row.state == PENDING and now >= row.put.expires_at else row.state


class Settled(NamedTuple):
    """The rows that a change writes, as they stand afterwards, each by its id."""

    approvals: dict[str, ApprovalRow]
    sticky: dict[str, StickyRow]


def settle_approvals(  # noqa: PLR0913 - each is another thing that is stored
    change: RunChange,
    find: Callable[[str], ApprovalRow | None],
    find_sticky: FindSticky,
    run: StickyRun,
    version: Versions,
    now: datetime,
    at: datetime,
) -> Settled | Refused:
    """Return what `change` writes of approvals, or why that does not hold, or its permits do not.

    Args:
        find: Returns an approval of the run's current generation by its id.
        version: As for `broken_guard`.
        now: The store's time, by which deadlines are judged.
        at: The time of the change's entries.
    """
    after: dict[str, ApprovalRow] = {}
    stuck: dict[str, StickyRow] = {}
    for act in change.approvals:
        row = after.get(act.approval_id) or find(act.approval_id)
        outcome = _act_on(change, act, row, now, at)
        if isinstance(outcome, str):
            return Refused(outcome, act.approval_id)
        after[act.approval_id] = outcome
        if unstuck := _use(act, stuck, find_sticky, run, now):
            return Refused("sticky", unstuck)
    for spend in change.spends:
        row = after.get(spend.approval_id) or find(spend.approval_id)
        refusal = spend_refusal(row, spend, now)
        if refusal or row is None:
            return Refused(refusal, spend.approval_id)
        after.setdefault(spend.approval_id, row)
    if refused := _unauthorised(change.permits, now, version):
        return refused
    for spend in change.spends:
        row = after[spend.approval_id]
        if row.spent[spend.cover] not in ("", spend.operation):
            return Refused("spent", spend.approval_id)
        spent = (*row.spent[: spend.cover], spend.operation, *row.spent[spend.cover + 1 :])
        after[spend.approval_id] = replace(row, spent=spent)
    return _stopped(change.permits, version) or Settled(after, stuck)


def _use(
    act: ApprovalPut | ApprovalExpire | ApprovalWithdraw,
    stuck: dict[str, StickyRow],
    find: FindSticky,
    run: StickyRun,
    now: datetime,
) -> str:
    """Use the decisions by which a request is answered; return the one that does not answer it, empty where all do.

    Args:
        stuck: Those that the change has used before, as they stand then. Adds to it.
    """
    if not isinstance(act, ApprovalPut):
        return ""
    for vote in act.votes:
        if not vote.sticky:
            continue
        row = used(stuck.get(vote.sticky) or find(vote.sticky), vote, act, run, now)
        if row is None:
            return vote.sticky
        stuck[vote.sticky] = row
    return ""


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
        # The votes are the row's from now on, in whatever way it is kept.
        put, spent = replace(act, votes=()), ("",) * len(act.covers)
        row = ApprovalRow(change.run, put, PENDING, spent, at, votes=act.votes)
        if not _is_enough(row):
            return row
        return replace(row, state=APPROVED, decided_at=at, by=row.votes[-1].by)
    if row is None:
        return "unknown"
    if isinstance(act, ApprovalExpire):
        refusal = expiry_refusal(row, now)
        if refusal:
            return refusal
    if row.state != PENDING:
        return row
    return replace(row, state=EXPIRED if isinstance(act, ApprovalExpire) else WITHDRAWN)
