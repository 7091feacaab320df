"""How runs and approvals look from outside: frozen data, made of what the store keeps.

An id has one row, and under it one *generation* after another, counted from 1; each has a journal and operations of its own. A generation
begins with a start of the id, or as the roll-over of the one before it (`continue_as_new`). A *use* of the id is one run: from a start up to
the next start, roll-overs included. Its *incarnation* is the number of its first generation. Messages and handles belong to a use;
operations, completion tokens and approvals to a generation. What a store keeps under `generation` of a message is the incarnation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from typing import Any, cast

import msgspec

from outlast.client.mail import Mail
from outlast.client.task import TaskView
from outlast.effects.standing import Alarm, Standing
from outlast.errors import ForkedEffectError, RunNotFoundError
from outlast.journal.asking import AskedFor, Edits, Sticks, Terms, Vote
from outlast.journal.entry import (
    ENTRY_NESTING,
    ApprovalRequested,
    Cancelled,
    CancelRequested,
    Entry,
    Failed,
    Moment,
    PauseRequested,
    ResumeRequested,
    RunTimedOut,
    Started,
)
from outlast.journal.parse import NotJsonError, parse, parse_as
from outlast.journal.place import origin_of
from outlast.journal.prefix import began_at
from outlast.store.change import (
    ApprovalRow,
    RunHead,
    RunKey,
    Status,
)
from outlast.store.condition import APPROVED, HISTORY, PENDING
from outlast.store.notice import NoticeRow, NoticeState
from outlast.store.protocol import GenerationRow

_REFUSED = f"outlast.errors.{ForkedEffectError.__name__}"
ANSWERED = "answered"
"""How a question stands that the store calls approved."""
_SHOWN = 200
"""Characters of an entry in its repr."""
_ENDS = frozenset({"completed", "failed", "cancelled", "continued_as_new"})


class Room(msgspec.Struct, frozen=True):
    """What would let a run go on that is blocked at the limit of its journal, in entries; bytes are allowed in proportion.

    Args:
        least: With fewer nothing is raised.
        more: With so many there is room for as much again.
    """

    least: int
    more: int


class _Note(msgspec.Struct):
    """The shape of what a worker notes when a run leaves its memory."""

    timers: dict[str, Moment] = {}
    approvals: dict[str, Moment] = {}
    retries: dict[str, Moment] = {}
    deadline: Moment | None = None
    completions: dict[str, Moment | None] = {}
    silences: dict[str, tuple[Moment, int]] = {}
    deadlines: dict[str, Moment] = {}
    tasks: dict[str, str] = {}
    start_by: dict[str, Moment] = {}
    signals: list[str] = []
    in_doubt: dict[str, str] = {}
    alarms: list[str] = []
    error: str = ""
    updates: list[str] = []
    untaken: dict[str, int] = {}
    runs: dict[str, str] = {}
    room: Room | None = None


class _Cover(msgspec.Struct):
    effect: str
    kind: str
    arguments: dict[str, Any]
    compensate: str = ""


class _Asked(msgspec.Struct):
    """The shape of what people are asked."""

    subject: Any
    covers: list[_Cover]


@cache
def _notes() -> msgspec.json.Decoder[_Note]:
    return msgspec.json.Decoder(_Note)


@cache
def _subjects() -> msgspec.json.Decoder[_Asked]:
    return msgspec.json.Decoder(_Asked)


@cache
def _requests() -> msgspec.json.Decoder[ApprovalRequested]:
    return msgspec.json.Decoder(ApprovalRequested)


class RunStatus(msgspec.Struct, frozen=True):
    """Where a run stands.

    Args:
        reason: Why it is blocked, or how it ended.
        waits: What it waits for: timers, approvals, retries, completions from outside, steps in queues, signals, updates, effects in doubt, other
            runs.
        worker: Who has it in memory.

    Example:
        ```python
        import outlast

        @outlast.workflow
        async def wait() -> None:
            await outlast.sleep(3600)

        async with outlast.open("memory://") as app:
            handle = await app.start(wait(), id="w")
            status = await handle.status()
            assert (status.run_id, status.workflow, status.generation) == ("w", "wait", 1)
            assert not status.status.closed
        ```
    """

    run_id: str
    workflow: str
    status: Status
    reason: str
    generation: int
    entries: int
    created_at: datetime
    changed_at: datetime
    wake_at: datetime | None
    worker: str | None
    waits: dict[str, Any]


class JournalEntry(msgspec.Struct, frozen=True):
    """One entry of a run's journal, to be looked at."""

    seq: int
    turn: int
    at: datetime
    entry: Entry

    def __repr__(self) -> str:
        """Show position, time, kind, and the body as JSON, cut where it is long."""
        try:
            body = parse(msgspec.json.encode(self.entry), nesting=ENTRY_NESTING)
        except NotJsonError as error:
            return f"JournalEntry({self.seq}, {type(self.entry).__name__}, unreadable: {error})"
        kind, name, operation = (body.pop(one, "") for one in ("type", "name", "operation"))
        what = " ".join(filter(None, (kind, name, operation and f"({operation})")))
        text = json.dumps({key: one for key, one in body.items() if one not in ("", None, [], {})})
        text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"
        return f"JournalEntry({self.seq}, {self.at:%Y-%m-%d %H:%M:%S} UTC, {what}, {text})"


class Retry(msgspec.Struct, frozen=True):
    """The latest retry of a run.

    Args:
        status: Where it stands.
    """

    run_id: str
    status: Status


class Generation(msgspec.Struct, frozen=True):
    """One generation of a run: a start, a restart of its id, or what came after a `continue_as_new`.

    Args:
        entries: How long its journal is.
        ended: `continued as new`, `completed`, `failed`, `cancelled`, `terminated`, or an empty string while it goes on.
        at: When the last entry of its journal was committed.
    """

    generation: int
    entries: int
    ended: str
    at: datetime


class RunDetail(msgspec.Struct, frozen=True):
    """Everything about a run that can be seen from outside, read at one moment.

    Args:
        entries: The journal of the present generation; entries that cannot be read are left out.
        unreadable: How many were.
        operations: Steps and effects that are open and left a trace.
        approvals: Requests that nobody has decided.
        unread: How many messages the run has not taken in.
        now: The store's time.
        fitting: Live workers that have registered the run's workflow.
        held: All of them are paused, and the run is not released.
        attended: Whether the worker that has the run in memory lives.
        alarms: What came for the run and was put aside, since it last made progress there.
        place: Where in the author's code the failure was raised that ended the run.
        cancelled_by: Who asked it to stop, and why.
        terminated_by: Who terminated it; `status` says why.
        paused_by: Who asked it to begin nothing, and why; empty when it is not paused.
        deadline: When its time is over, as its start says.
        timed_out_at: When its time was over and it was told so.
        generations: The newest ones, the present one first.
        tasks: Attempts of its remote steps.
        durability: When its outcomes are written; empty when nobody can read that.
        mail: The messages that the run has not taken in, outcomes from outside and requests of operators among them.
        retry: The latest of its retries that have no id of their own, where it ended without a result and was done again.
    """

    status: RunStatus
    entries: list[JournalEntry]
    unreadable: int
    operations: list[Standing]
    approvals: list[ApprovalView]
    unread: int
    now: datetime
    fitting: list[str]
    attended: bool
    alarms: list[Alarm] = []
    place: str = ""
    cancelled_by: str = ""
    terminated_by: str = ""
    paused_by: str = ""
    deadline: datetime | None = None
    timed_out_at: datetime | None = None
    generations: list[Generation] = []
    tasks: list[TaskView] = []
    durability: str = ""
    mail: list[Mail] = []
    retry: Retry | None = None
    held: bool = False


class Changed(msgspec.Struct, frozen=True):
    """An argument that an approver has edited.

    Args:
        cover: Of which covered call, from 0.
        field: Its name.
        was: What it was, as plain data; None also where there was none.
        becomes: What it is now.
    """

    cover: int
    field: str
    was: Any
    becomes: Any


class Told(msgspec.Struct, frozen=True):
    """One time that people are told of a request.

    Args:
        notice: `asked`, or which reminder.
        state: `open` (to be sent, or sent again), `sent`, or `failed`: given up.
        due_at: When it is to be sent, while it is open.
        tries: How often somebody has set about it.
        reached: Names of the channels that have it.
        trouble: Why the last try failed.
    """

    notice: str
    state: NoticeState
    due_at: datetime
    tries: int
    reached: tuple[str, ...]
    trouble: str


class NextAsked(msgspec.Struct, frozen=True):
    """Who is asked after those who are asked now, when none of these decides in time.

    Args:
        at: From when on.
        expires_at: Until when they may decide.
    """

    role: str
    at: datetime
    expires_at: datetime


class ApprovalView(msgspec.Struct, frozen=True):
    """An approval or a question, to be looked at.

    Args:
        role: Who may decide, before `expires_at`.
        subject: What is asked: `{"subject": …, "covers": […]}`, exactly what is hashed. With the facts on which a yes rests (`preconditions`),
            with the schema of the answer (`question`), and with why it is asked again (`note`), where there are any.
        state: `pending`, `approved`, `answered` (a question), `denied`, `edited`, `expired` or `withdrawn`.
        spent: The operation that each cover was spent to, or an empty string.
        by: Who decided it, the last one.
        genuine: Whether the subject has the hash.
        operation: Which operation of the run asks.
        kind: `approval`, or `question`.
        votes: Who has said yes.
        quorum: So many have to.
        missing: So many more.
        four_eyes: Whether whoever started the run (`requesters`) may not say yes.
        edits: What an edit is: refused (`no`), a yes to the edited action (`yes`), or a request to somebody else (`second`).
        barred: Who may not say yes, either: they have edited it.
        again: Why it follows another request of the operation: `escalated`, `edited`, `changed` or `unfit`; empty for the first one.
        source: Why an effect is asked for: `declared`, `policy` or `purpose`; empty for what the workflow's code asks.
        rule: Which rule of the policy wants it.
        policy_version: Of that policy.
        sticky: How far a yes may stick: `no`, `call`, `turn`, `run` or `workflow`.
        server: Of a foreign tool: whose it is, and by which definition.
        turn: Which turn of the run asks: another one after each message that it is sent.
        changes: What was edited; looked up by `get` only.
        next: Who is asked next, and who after them, while it is pending.
        told: What people were told of it, or are to be, while it is pending; looked up by `get` only.

    Example:
        ```python
        import asyncio
        from datetime import timedelta

        import outlast

        @outlast.workflow
        async def publish(text: str) -> str:
            boss = outlast.Rung("boss", timedelta(hours=4))
            grant = await outlast.approval(text, role="editor", expires_in=timedelta(hours=1), escalate=(boss,))
            return grant.by

        async with outlast.open("memory://") as app:
            await app.start(publish("hello"), id="post-1")
            while not (asked := await app.approvals.list()):
                await asyncio.sleep(0.01)
            view: outlast.ApprovalView = asked[0]
            assert (view.role, view.state, view.subject["subject"]) == ("editor", "pending", "hello")
            assert [one.role for one in view.next] == ["boss"]
            await app.approvals.deny("post-1", view.approval_id, seen_sha256=view.subject_sha256)
        ```
    """

    run_id: str
    approval_id: str
    role: str
    state: str
    subject: Any
    subject_sha256: str
    requested_at: datetime
    expires_at: datetime
    use_by: datetime
    spent: tuple[str, ...]
    by: str = ""
    decided_at: datetime | None = None
    genuine: bool = True
    operation: str = ""
    kind: AskedFor = "approval"
    votes: tuple[Vote, ...] = ()
    quorum: int = 1
    missing: int = 0
    four_eyes: bool = False
    edits: Edits = "no"
    requesters: tuple[str, ...] = ()
    barred: tuple[str, ...] = ()
    again: str = ""
    source: str = ""
    rule: str = ""
    policy_version: str = ""
    sticky: Sticks = "no"
    server: str = ""
    turn: str = ""
    changes: tuple[Changed, ...] = ()
    next: tuple[NextAsked, ...] = ()
    told: tuple[Told, ...] = ()

    @property
    def schema(self) -> Any:
        """The JSON schema of the answer, for a question; None for an approval."""
        question = self.subject.get("question")
        return (
            cast("dict[str, Any]", question).get("schema") if isinstance(question, dict) else None
        )


def status_of(head: RunHead) -> RunStatus:
    """Return a run's row as people see it."""
    return RunStatus(
        run_id=head.run.run_id,
        workflow=head.workflow,
        status=head.status,
        reason=head.reason,
        generation=head.generation,
        entries=head.next_seq,
        created_at=head.created_at,
        changed_at=head.changed_at,
        wake_at=head.wake_at,
        worker=head.owner,
        waits=_waits_in(head.note),
    )


def retry_makes_effects(status: RunStatus) -> bool:
    """Whether a run is a fork that failed with an effect that it may not make: its retry may."""
    return status.status is Status.FAILED and status.reason.startswith(_REFUSED)


def generation_of(row: GenerationRow, head: RunHead) -> Generation:
    """Return a generation as people see it."""
    ended = row.kind.replace("_", " ") if row.kind in _ENDS else "terminated"
    if row.generation == head.generation:
        ended = str(head.status) if head.status.closed else ""
    return Generation(row.generation, row.entries, ended, row.at)


def place_in(entries: list[Entry]) -> str:
    """Return where in the author's code the failure was raised that ended a run; empty when none did."""
    match entries[-1:]:
        case [Failed(failure=failure) | Cancelled(failure=failure)]:
            return origin_of(failure, entries)
        case _:
            return ""


def cancel_in(entries: list[Entry]) -> str:
    """Return who asked the run to stop, and why; empty when nobody did."""
    for entry in reversed(entries):
        if isinstance(entry, CancelRequested):
            return _asked(entry)
    return ""


def pause_in(entries: list[Entry]) -> str:
    """Return who asked the run to begin nothing, and why; empty when it is not paused."""
    for entry in reversed(entries):
        match entry:
            case PauseRequested():
                return _asked(entry)
            case ResumeRequested() | CancelRequested():
                return ""
            case _:
                pass
    return ""


def deadline_in(entries: list[JournalEntry]) -> datetime | None:
    """Return when the run's time is over, as its start says; None when it may take as long as it likes."""
    match entries[:1]:
        case [JournalEntry(entry=Started() as started)]:
            return started.deadline(began_at((one.entry, one.at) for one in entries))
        case _:
            return None


def durability_in(entries: list[Entry]) -> str:
    """Return when the run's outcomes are written, as its start says; empty when it cannot be read."""
    return next((one.durability for one in entries[:1] if isinstance(one, Started)), "")


def time_out_in(entries: list[JournalEntry]) -> datetime | None:
    """Return when the run was told that its time is over; None when it was not."""
    return next((one.at for one in entries if isinstance(one.entry, RunTimedOut)), None)


def _asked(entry: CancelRequested | PauseRequested) -> str:
    by = f"by {entry.by}" if entry.by else "by somebody"
    return f"{by}: {entry.reason}" if entry.reason else by


def view_of(row: ApprovalRow) -> ApprovalView:
    """Return an approval's row as people see it; what cannot be read is shown as empty, and not genuine."""
    subject, genuine, request = _subject_in(row)
    terms = row.put.terms or Terms(row.put.role, row.put.expires_at - row.requested_at)
    is_answered = row.put.kind == "question" and row.state == APPROVED
    return ApprovalView(
        run_id=row.run.run_id,
        approval_id=row.put.approval_id,
        role=row.put.role,
        state=ANSWERED if is_answered else row.state,
        subject=subject,
        subject_sha256=row.put.subject_sha256,
        requested_at=row.requested_at,
        expires_at=row.put.expires_at,
        use_by=row.put.use_by,
        spent=row.spent if len(row.spent) == len(subject["covers"]) else (),
        by=row.by,
        decided_at=row.decided_at,
        genuine=genuine,
        operation=row.put.operation,
        kind=row.put.kind,
        votes=row.votes,
        quorum=terms.quorum,
        missing=max(terms.quorum - len(row.votes), 0) if row.state == PENDING else 0,
        four_eyes=terms.four_eyes,
        edits=terms.edits,
        requesters=row.put.requesters,
        barred=row.put.barred,
        again="" if request is None else request.again,
        source="" if request is None else request.source,
        rule="" if request is None else request.rule,
        policy_version="" if request is None else request.policy_version,
        next=() if request is None or row.state != PENDING else tuple(_next_in(request, terms)),
        # Whoever is asked later, in another role, is not whom the next request asks.
        sticky=terms.sticky if terms.role == row.put.role else "no",
        server="" if request is None else request.server,
        turn="" if request is None else request.turn,
    )


def told_of(row: NoticeRow) -> Told:
    """Return a notice as people see it."""
    trouble = row.trouble.decode(errors="replace")
    return Told(row.notice, row.state, row.due_at, row.tries, row.reached, trouble)


def _next_in(request: ApprovalRequested, terms: Terms) -> Iterator[NextAsked]:
    """Yield who is asked when nobody decides in time; a time that no clock can show ends that."""
    at = request.expires_at
    for rung in terms.escalate[max(request.rung, 0) :]:
        try:
            until = at + rung.expires_in
        except OverflowError:
            return
        yield NextAsked(rung.role, at, until)
        at = until


def changes_between(former: ApprovalView, view: ApprovalView) -> tuple[Changed, ...]:
    """Return what is another in the calls that a request covers than it was in those of a former one."""
    return tuple(
        Changed(place, name, before.get(name), after.get(name))
        for place, (old, new) in enumerate(
            zip(former.subject["covers"], view.subject["covers"], strict=False)
        )
        for before, after in [(old["arguments"], new["arguments"])]
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name) or (name in before) != (name in after)
    )


def room_in(head: RunHead) -> Room | None:
    """Return what was noted of a run that is blocked at the limit of its journal; None for any other."""
    if head.status is not Status.BLOCKED or head.reason != HISTORY or not head.note:
        return None
    try:
        return parse_as(_notes(), head.note).room
    except NotJsonError:
        return None


def _waits_in(note: bytes) -> dict[str, Any]:
    """Return what a run's worker noted; nothing when the note has another shape than notes have."""
    if not note:
        return {}
    try:
        parse_as(_notes(), note)
        return parse(note)
    except NotJsonError:
        return {}


def _subject_in(row: ApprovalRow) -> tuple[dict[str, Any], bool, ApprovalRequested | None]:
    """Return what a request asks, whether it has the hash, and its entry."""
    try:
        request = parse_as(_requests(), row.put.body, nesting=ENTRY_NESTING)
        body = bytes(request.subject)
        asked = parse_as(_subjects(), body, nesting=ENTRY_NESTING)
        if len(asked.covers) == len(row.spent):
            genuine = hashlib.sha256(body).hexdigest() == row.put.subject_sha256
            return parse(body, nesting=ENTRY_NESTING), genuine, request
    except NotJsonError:
        pass
    return {"subject": None, "covers": []}, False, None


def not_found(run: RunKey) -> RunNotFoundError:
    """Return the error that there is no such run."""
    return RunNotFoundError(
        "there is no such run",
        run=run.run_id,
        hint="see `outlast runs list`, and check the database",
    )
