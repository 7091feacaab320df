"""What one operation asks of people: the request that waits, those that were granted, and how each follows from the one before.

Guards these rules: all that counts of a request is what its entry says; a request never changes, so what is escalated, edited or answered
unfit is closed, and another one is made; and a yes given to one request is no yes to another.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from msgspec import Raw, Struct, field
from msgspec.structs import replace

from outlast.errors import (
    ApprovalDeniedError,
    ApprovalError,
    ApprovalExpiredError,
    DecodeError,
    EncodeError,
)
from outlast.journal.asking import AskedAgain, Terms, Vote
from outlast.journal.entry import (
    ApprovalDecided,
    ApprovalEdited,
    ApprovalExpired,
    ApprovalRequested,
    ApprovalVoted,
    Cover,
    OperationId,
)
from outlast.journal.parse import NotJsonError, parse
from outlast.journal.subject import Subject, with_actions, with_note
from outlast.replay.command import RequestApproval
from outlast.replay.context import EffectRequest

Remake = Callable[[int, bytes], EffectRequest]
"""Returns what is asked of the run for a covered call (its place, from 0) with other arguments; raises `DecodeError` for unfit ones."""

_NOTE_LENGTH = 2_000


def approval_id(operation: OperationId, generation: int, count: int) -> str:
    """Return the id of the next request of an operation.

    Args:
        count: How many it has made.
    """
    return f"{generation}~{operation}" + (f"#{count + 1}" if count else "")


class Asking(Struct, eq=False):
    """What one operation asks.

    Args:
        count: How many requests stand in the journal.
        current: The one that waits for a decision.
        edit: By which the last one was closed, as long as none follows it.
        votes: Who has said yes to what waits.
        edits: By its place among the covers, JSON of the arguments that approvers gave a covered call.
        granted: The requests that were approved, oldest first.
        effective: JSON of the arguments that were approved last; empty before.
    """

    count: int = 0
    current: ApprovalRequested | None = None
    edit: ApprovalEdited | None = None
    votes: tuple[Vote, ...] = ()
    edits: dict[int, bytes] = field(default_factory=dict[int, bytes])
    granted: tuple[str, ...] = ()
    effective: bytes = b""

    @property
    def waits(self) -> bool:
        """Whether it is a person's turn: something is asked, or is about to be asked anew."""
        return self.current is not None or self.edit is not None

    def is_of(self, approval_id: str) -> bool:
        """Whether that request is the one that waits."""
        return self.current is not None and self.current.approval_id == approval_id

    def requested(self, entry: ApprovalRequested) -> None:
        """Take in a request."""
        if self.edit is not None and entry.again == "edited":
            self.edits |= {one.cover: bytes(one.arguments) for one in self.edit.edits}
        self.count += 1
        self.current, self.edit, self.votes = entry, None, entry.votes

    def voted(self, entry: ApprovalVoted) -> None:
        """Take in a yes, after which more are needed."""
        if self.is_of(entry.approval_id):
            self.votes = (*self.votes, Vote(entry.by, entry.at, entry.behalf))

    def edited(self, entry: ApprovalEdited) -> ApprovalRequested | None:
        """Take in that somebody wants something else; return the request that this closes, None where it is none that waits."""
        if not self.is_of(entry.approval_id):
            return None
        former, self.current, self.edit = self.current, None, entry
        return former

    def granted_by(self, entry: ApprovalDecided) -> None:
        """Take in the last yes to what waits."""
        assert self.current is not None
        persons = {entry.by, entry.behalf}
        if not any(one.by in persons for one in self.votes):
            self.votes = (*self.votes, Vote(entry.by, entry.decided_at, entry.behalf))
        self.granted = (*self.granted, entry.approval_id)
        self.effective = bytes(self.current.effective)
        self.current = None

    def void(self) -> None:
        """Forget what was granted: it was granted to somebody else."""
        self.granted, self.effective = (), b""
        self.edits.clear()


def terms_of(entry: ApprovalRequested) -> Terms:
    """Return how a request is decided; one of an older library by one yes."""
    if entry.terms is not None:
        return entry.terms
    # Its deadlines stand beside it, and nothing counts from these terms.
    return Terms(entry.role, timedelta(0))


def is_enough(terms: Terms, votes: tuple[Vote, ...]) -> bool:
    """Whether so many have said yes that no more have to."""
    return len(votes) >= max(terms.quorum, 1)


def escalated(former: ApprovalRequested, new_id: str) -> RequestApproval | None:
    """Return what is asked when nobody has decided in time; None when there is nobody else to ask.

    Args:
        new_id: Of the new request; so below.
    """
    if former.terms is None or former.terms.is_last(former.rung):
        return None
    return replace(_again(former, new_id, "escalated"), rung=former.rung + 1)


def edited(
    former: ApprovalRequested, entry: ApprovalEdited, remake: Remake | None, new_id: str
) -> RequestApproval:
    """Return what is asked when an approver wants something else: that, or, where it does not fit, the same again."""
    try:
        made = {one.cover: _made(remake, one.cover, bytes(one.arguments)) for one in entry.edits}
        if not made:
            raise DecodeError("it changes nothing")
        actions = {place: (one.action_sha256, one.fields) for place, one in made.items()}
        subject = with_actions(bytes(former.subject), actions)
    except (DecodeError, EncodeError) as error:
        return unfit(former, f"what {entry.by} made of it does not fit: {error.message}", new_id)
    except NotJsonError as error:
        return unfit(former, f"what {entry.by} made of it does not fit: {error}", new_id)
    covers = tuple(
        replace(cover, action_sha256=made[place].action_sha256) if place in made else cover
        for place, cover in enumerate(former.covers)
    )
    command = _shows(_again(former, new_id, "edited"), subject, covers)
    if former.source:
        command = replace(command, effective=Raw(made[0].arguments))
    command = replace(command, reason=entry.reason)
    persons = tuple(one for one in (entry.by, entry.behalf) if one)
    if former.preconditions or terms_of(former).edits != "yes":
        return replace(command, barred=tuple(dict.fromkeys((*former.barred, *persons))))
    return replace(command, votes=(Vote(entry.by, entry.at, entry.behalf),))


def unfit(former: ApprovalRequested, why: str, new_id: str) -> RequestApproval:
    """Return what is asked when what somebody said of a request does not fit: the same, with the reason in what is shown.

    Raises:
        DecodeError: What was shown cannot be read.
    """
    try:
        subject = with_note(bytes(former.subject), why[:_NOTE_LENGTH])
    except (NotJsonError, EncodeError) as error:
        raise DecodeError(
            f"what request {former.approval_id} showed cannot be read: {error}",
            operation=former.operation,
            hint="the store was changed by hand or is damaged",
        ) from None
    return _shows(_again(former, new_id, "unfit"), subject, former.covers)


def _again(former: ApprovalRequested, new_id: str, again: AskedAgain) -> RequestApproval:
    is_later = again == "escalated"
    return RequestApproval(
        operation=former.operation,
        approval_id=new_id,
        terms=terms_of(former),
        subject=former.subject,
        subject_sha256=former.subject_sha256,
        covers=former.covers,
        kind=former.kind,
        preconditions=former.preconditions,
        requested=former.requested,
        effective=former.effective,
        source=former.source,
        policy_version=former.policy_version,
        rule=former.rule,
        rung=former.rung,
        again=again,
        barred=former.barred,
        version=former.version,
        server=former.server,
        turn=former.turn,
        requesters=former.requesters,
        expires_at=None if is_later else former.expires_at,
        use_by=None if is_later else former.use_by,
    )


def _shows(
    command: RequestApproval, subject: Subject, covers: tuple[Cover, ...]
) -> RequestApproval:
    return replace(command, subject=subject.body, subject_sha256=subject.sha256, covers=covers)


def _made(remake: Remake | None, place: int, arguments: bytes) -> EffectRequest:
    """Return the action that an edit makes of a covered call.

    Raises:
        DecodeError: It does not fit; also where it names what is no parameter, which code would not look at.
    """
    if remake is None:
        raise DecodeError("nothing of it can be edited")
    made = remake(place, arguments)
    given: Any = parse(arguments)
    unknown = sorted(set(given).difference(made.fields))
    if unknown:
        raise DecodeError(f"{made.name} has no parameter {', '.join(unknown)}")
    return made


def not_granted(
    entry: ApprovalDecided | ApprovalExpired, requested: ApprovalRequested, run_id: str
) -> ApprovalError:
    """Return the error that a no, or no answer, raises in the workflow."""
    if isinstance(entry, ApprovalExpired):
        return ApprovalExpiredError(
            f"nobody with the role {requested.role!r} decided before {requested.expires_at:%Y-%m-%d %H:%M:%S} UTC",
            stage="decide",
            run=run_id,
            operation=entry.operation,
            hint="start the run again with a new id, or give a longer expires_in",
        )
    return ApprovalDeniedError(
        f"denied by {entry.by}: {entry.reason or 'no reason given'}",
        by=entry.by,
        reason=entry.reason,
        run=run_id,
        operation=entry.operation,
        hint="nothing that the approval covers was done",
    )
