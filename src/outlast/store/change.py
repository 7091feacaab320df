"""What can be written: every kind of change, as frozen data, each field marked plain or payload.

A change is *owned* (it names run, worker and lease epoch, and is refused once another worker holds the run) or *unowned*
(insert if absent, or compare and set). `commit` takes many changes of many runs in one transaction and answers each with a
verdict of its own; one bad change never takes another down.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, NewType, TypeAlias

import msgspec
from msgspec import Struct

from outlast.journal.asking import AskedFor, Terms, Vote
from outlast.journal.entry import PAYLOAD, PLAIN, EntryRow
from outlast.store.notice import NoticeChange, NoticeRow
from outlast.store.request import RequestChange, RequestRow
from outlast.store.sticky import StickyPut

WorkerId = NewType("WorkerId", str)
"""One life of one worker process; never used again once its lease has lapsed."""


class RunKey(Struct, frozen=True, order=True):
    """Names a run."""

    tenant: Annotated[str, PLAIN]
    run_id: Annotated[str, PLAIN]

    def __str__(self) -> str:
        """Return the id, after its tenant where that is not the default."""
        return self.run_id if self.tenant == "default" else f"{self.tenant}/{self.run_id}"


class Status(StrEnum):
    """What a run is doing."""

    READY = "ready"
    RUNNING = "running"
    WAITING = "waiting"
    BLOCKED = "blocked"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"
    COMPENSATED = "compensated"
    PARTLY_COMPENSATED = "partly compensated"

    @property
    def closed(self) -> bool:
        """Whether the run has ended."""
        return self in CLOSED


CLOSED = frozenset(
    {
        Status.COMPLETED,
        Status.FAILED,
        Status.CANCELLED,
        Status.TERMINATED,
        Status.COMPENSATED,
        Status.PARTLY_COMPENSATED,
    }
)


class MessageKind(StrEnum):
    """What an inbox item is. Operator acts and outcomes from elsewhere come the same way as signals."""

    SIGNAL = "signal"
    UPDATE = "update"
    CANCEL = "cancel"
    DECISION = "decision"
    RESOLUTION = "resolution"
    OUTCOME = "outcome"
    PAUSE = "pause"
    RESUME = "resume"
    ACCEPT = "accept"


class Message(Struct, frozen=True):
    """An inbox item.

    Args:
        message_id: Unique in the run, also after it was consumed and after a roll-over: a second one with the same id is the same
            message, as long as it is among the last 10,000, or an update that is yet to be answered. A restarted id is a new run, which knows nothing of what
            the former one was sent.
        name: Of the signal; of the operation for outcomes and resolutions.
        sender: Principal or run that sent it.
        body: JSON by kind.
        digest: Of what it says, to tell another message under the same id from the same one sent again: kept as long as the id is known.
            Two that both have one, and not the same, are two messages. Empty: the id alone says which message it is.
        result: Of a decision, by the store: what came of it, `vote` (more are needed), `approved`, `denied` or `edited`.
    """

    message_id: Annotated[str, PLAIN]
    kind: Annotated[MessageKind, PLAIN]
    name: Annotated[str, PLAIN]
    sender: Annotated[str, PLAIN]
    body: Annotated[bytes, PAYLOAD]
    digest: Annotated[str, PLAIN] = ""
    result: Annotated[str, PLAIN] = ""


MAX_UNREAD = 10_000
"""Unread items of a run, from which on its inbox takes no more signals and updates; what operators and effects say still passes."""

CAPPED = frozenset({MessageKind.SIGNAL, MessageKind.UPDATE})
"""Kinds of messages that a full inbox refuses."""


class Answer(Struct, frozen=True):
    """The answer to an update, kept in its row.

    Args:
        body: JSON of the `UpdateAnswered` entry.
    """

    message_id: Annotated[str, PLAIN]
    body: Annotated[bytes, PAYLOAD]


class OutboxKind(StrEnum):
    """What the relay is to do for a run."""

    START = "start"
    SIGNAL = "signal"
    CANCEL = "cancel"
    TERMINATE = "terminate"
    WATCH = "watch"
    UNWATCH = "unwatch"
    ENDED = "ended"


class OutboxItem(Struct, frozen=True):
    """What a run asks of another one, or has to tell it; the relay sees to it, and doing so twice is doing it once.

    Args:
        target: Of the sender's own tenant.
        message_id: Of the inbox item that comes of it.
        name: Of the workflow to start, of the signal; of `ended`, the status.
        sender: The principal that starts; the run that sends.
        body: JSON by kind; empty for what needs none.
        generation: Of the sender.
        operation: The sender's, which is told what came of it; empty where nobody waits. For `watch`, `unwatch` and `ended`, the
            watcher's.
        target_generation: For `ended`: of the watcher; another one is not told.
        origin: Only a run that was started by this operation is meant; for `start`, the operation that starts it.
        reason: For `ended`: why the run was terminated.
        number: Given by the store, in order, and never again to another item of the run.
    """

    target: Annotated[RunKey, PLAIN]
    kind: Annotated[OutboxKind, PLAIN]
    message_id: Annotated[str, PLAIN] = ""
    name: Annotated[str, PLAIN] = ""
    sender: Annotated[str, PLAIN] = ""
    body: Annotated[bytes, PAYLOAD] = b""
    generation: Annotated[int, PLAIN] = 1
    operation: Annotated[str, PLAIN] = ""
    target_generation: Annotated[int, PLAIN] = 0
    origin: Annotated[str, PLAIN] = ""
    reason: Annotated[str, PLAIN] = ""
    number: Annotated[int, PLAIN] = 0


class Watch(Struct, frozen=True):
    """Who is told of the end of a run: the operation of another run of the tenant."""

    watcher: Annotated[RunKey, PLAIN]
    generation: Annotated[int, PLAIN]
    operation: Annotated[str, PLAIN]


CHILD_TERMINATE = "child_terminate"
CHILD_CANCEL = "child_cancel"
CHILD_ABANDON = "child_abandon"
WATCHED = "watch"
OTHER_RUN = frozenset({CHILD_TERMINATE, CHILD_CANCEL, CHILD_ABANDON, WATCHED})
"""Kinds of open operations that stand for another run, whose id is their name: a child, by what the end of its parent means to it, or
a run that is watched."""


SAGA = "saga"
"""Kind of the open operation that stands for a saga in which something was done that may have to be undone."""


def origin_of(run_id: str, generation: int, operation: str) -> str:
    """Return what the row of a run says of the operation that started it."""
    return f"{run_id}~{generation}~{operation}"


class OperationPut(Struct, frozen=True, tag="put"):
    """The mutable row of an open operation: what is known of its attempts, or which other run it stands for.

    Args:
        kind: `step`, `effect`, `saga`, or one of `OTHER_RUN`.
        name: Of the step or effect; the id of the other run.
        failures: Attempts recorded as failed. An attempt cut off by a crash is not among them.
        due_at: No attempt begins before this; of a step that was handed out, when it is no longer waited for.
        detail: JSON of the last failure.
        progress: JSON of the details of the last beat that was kept: what the next attempt may go on from.
        awaits: The step was handed out: its outcome comes from outside, and no attempt is under way.
        unapplied: Each failed attempt of the effect has proved that it changed nothing.
        beats: How often whoever works outside has said that it is alive, since the hand-out. While the row awaits, a put that knows of
            another number is refused with `beat`: it was decided on without that.
        heard_at: When it was last heard of: at the hand-out, or at the last of these beats. Of others there is no such time.
        silence: For how long it may say nothing; None for as long as it likes.
        begun_at: When the last attempt of an effect was announced, by the store's clock: none has begun later. None where nobody knows.
        in_doubt: Whether the effect happened is not known, and somebody must say. By this `StoreReader.doubts` finds it.
    """

    operation: Annotated[str, PLAIN]
    kind: Annotated[str, PLAIN]
    name: Annotated[str, PLAIN]
    failures: Annotated[int, PLAIN] = 0
    due_at: Annotated[datetime | None, PLAIN] = None
    detail: Annotated[bytes, PAYLOAD] = b""
    progress: Annotated[bytes, PAYLOAD] = b""
    awaits: Annotated[bool, PLAIN] = False
    unapplied: Annotated[bool, PLAIN] = False
    beats: Annotated[int, PLAIN] = 0
    heard_at: Annotated[datetime | None, PLAIN] = None
    silence: Annotated[timedelta | None, PLAIN] = None
    begun_at: Annotated[datetime | None, PLAIN] = None
    in_doubt: Annotated[bool, PLAIN] = False


class OperationDrop(Struct, frozen=True, tag="drop"):
    """The operation is settled; its row goes.

    Args:
        beats: Only if its row does not await, or has so many beats; refused with `beat` otherwise. None whatever was heard.
    """

    operation: Annotated[str, PLAIN]
    beats: Annotated[int | None, PLAIN] = None


class TaskPut(Struct, frozen=True, tag="put"):
    """One attempt of a remote step waits for a worker that serves its queue, in place of whatever task the operation had.

    Whoever works on the former task is fenced by this.

    Args:
        attempt: Counted from 1, as the attempts of any step.
        arguments: JSON object of the step's bound arguments by parameter name.
        due_at: Nobody takes it before this.
        progress: JSON of the details that former attempts have left; empty leaves what the former task has.
    """

    operation: Annotated[str, PLAIN]
    attempt: Annotated[int, PLAIN]
    queue: Annotated[str, PLAIN]
    name: Annotated[str, PLAIN]
    arguments: Annotated[bytes, PAYLOAD]
    due_at: Annotated[datetime | None, PLAIN] = None
    progress: Annotated[bytes, PAYLOAD] = b""


class TaskDrop(Struct, frozen=True, tag="drop"):
    """Nobody waits for the task any more: it goes, whoever works on it. No error when there is none.

    Args:
        attempt: Only if the task is of this attempt; refused with `task` otherwise, and when there is none.
        taken: Only if nobody has it, and it was taken so often, no more; refused with `task` otherwise.
    """

    operation: Annotated[str, PLAIN]
    attempt: Annotated[int | None, PLAIN] = None
    taken: Annotated[int | None, PLAIN] = None


class CoverRow(Struct, frozen=True):
    """One covered action of an approval; spent once, by one operation.

    Args:
        match_sha256: Hash of the exact action, or of the pattern.
    """

    effect: Annotated[str, PLAIN]
    match_sha256: Annotated[str, PLAIN]


class Guard(Struct, frozen=True):
    """A control row still has the version on which something was decided.

    Args:
        tenant: Whose row it is; empty for the row that counts for all tenants.
        version: 0 where there is no such row.
    """

    tenant: Annotated[str, PLAIN]
    name: Annotated[str, PLAIN]
    version: Annotated[int, PLAIN]


class Permit(Struct, frozen=True):
    """On what it rests that an effect may begin.

    Args:
        operation: The effect.
        checked_at: When the first of all that was asked was asked, by the store's clock: hooks, rules, authority, preconditions.
        within: How old the answers may be.
        authority: The rows by which those who approved, and who started the run, were found to be authorised.
        stops: The rows by which no stop was found.
    """

    operation: Annotated[str, PLAIN]
    checked_at: Annotated[datetime, PLAIN]
    within: Annotated[timedelta, PLAIN]
    authority: Annotated[tuple[Guard, ...], PLAIN] = ()
    stops: Annotated[tuple[Guard, ...], PLAIN] = ()


class ApprovalPut(Struct, frozen=True, tag="put"):
    """A request; pending, unless it needs no more votes than it has.

    Args:
        body: JSON of the `ApprovalRequested` entry: what is shown.
        terms: How it is decided; None in rows of an older library: one yes.
        requesters: Who started the run; of a fork, also who made it. Under four eyes nobody may say yes or edit where one of them is not
            known (an empty name), or none is given.
        barred: Who may neither say yes nor edit, whatever the terms.
        votes: Who has said yes already, each another person. They are the row's (`ApprovalRow.votes`), whose put has none.
    """

    approval_id: Annotated[str, PLAIN]
    operation: Annotated[str, PLAIN]
    role: Annotated[str, PLAIN]
    subject_sha256: Annotated[str, PLAIN]
    expires_at: Annotated[datetime, PLAIN]
    use_by: Annotated[datetime, PLAIN]
    covers: Annotated[tuple[CoverRow, ...], PLAIN]
    body: Annotated[bytes, PAYLOAD]
    terms: Annotated[Terms | None, PLAIN] = None
    kind: Annotated[AskedFor, PLAIN] = "approval"
    requesters: Annotated[tuple[str, ...], PLAIN] = ()
    barred: Annotated[tuple[str, ...], PLAIN] = ()
    votes: Annotated[tuple[Vote, ...], PLAIN] = ()


class ApprovalExpire(Struct, frozen=True, tag="expire"):
    """Close a pending request whose time is over.

    Refused with `decided` when a decision came first, `not_due` when the store's clock says that there is time left.
    """

    approval_id: Annotated[str, PLAIN]


class ApprovalWithdraw(Struct, frozen=True, tag="withdraw"):
    """Close a pending request that nobody waits for any more. No error when it is closed already."""

    approval_id: Annotated[str, PLAIN]


class GrantSpend(Struct, frozen=True):
    """Spend one cover to one operation, in the transaction of its intent.

    Checked in this order, each with a refusal of its own: `expired` (use_by, by the store's clock), `mismatch` (hash),
    `unapproved`; then the permits of the change; then `spent` (to another operation). Spending again to the same operation is no error.
    """

    approval_id: Annotated[str, PLAIN]
    cover: Annotated[int, PLAIN]
    operation: Annotated[str, PLAIN]
    match_sha256: Annotated[str, PLAIN]


class HeadUpdate(Struct, frozen=True):
    """What changes on the run's row.

    Args:
        reason: For `blocked` and closed runs: a stable word or sentence fit for a list.
        wake_at: When a parked run has something to do by itself.
        release: Give the run back: nobody owns it after this change. A closed status does so too; it is refused with `mail`
            while there are messages that this change does not consume, so that an accepted message is never lost.
        ignore_mail: With `release`: do not offer the run because of messages that are already there.
        mail_seen: With `ignore_mail`: the number of the last inbox item that the owner has seen. A later one, which came
            while this change was under way, offers the run all the same. None ignores whatever is there.
        unfit_build: With `release`: a build that cannot go on with this run. It joins those that are known already: the run is
            offered at once to workers of builds that are not among them, to the others for mail only. A change with entries is
            progress and forgets them (this one excepted); a claim forgets nothing, or two builds that both do not fit would
            hand the run to and fro for ever.
        note: JSON: what the run waits for, for `explain`.
        ending: Take no more signals and updates, as a closed run does: the end is to be written next. Until the next update.
    """

    status: Annotated[Status, PLAIN]
    reason: Annotated[str, PLAIN] = ""
    wake_at: Annotated[datetime | None, PLAIN] = None
    release: Annotated[bool, PLAIN] = False
    ignore_mail: Annotated[bool, PLAIN] = False
    mail_seen: Annotated[int | None, PLAIN] = None
    unfit_build: Annotated[str, PLAIN] = ""
    note: Annotated[bytes, PAYLOAD] = b""
    ending: Annotated[bool, PLAIN] = False


class RunChange(Struct, frozen=True, tag="run"):
    """Everything that one run's owner writes at once.

    Args:
        version: The head's version that this change follows; the head's becomes `version + 1`.
        digest: Of this change (`digest_of`): kept on the head, so that a change sent again is recognised as applied.
        entries: Appended; the first one's `seq` is the head's `next_seq`.
        consumed: Ids of the inbox items that the entries stand for.
        answers: To updates that are consumed, by this change or before, each once. Refused with `answer` otherwise.
        next: The first entries of the next generation, from `seq` 0, when this change ends the present one: a roll-over. The
            first is `Started`, whose name the run's `workflow` becomes. The inbox does not move: what is unread is for the new
            generation, in order. Open operations and pending requests go. `head` gives the run back as `ready`; anything else
            is refused with `next`.
        hold: True: no task that the run has is taken any more, nor one that comes back from its worker. False: those that were
            held may be taken again, and wait anew from now on. None leaves that as it is.
        times: Of the first entries, where the run has seen them with these times already (it went on while they were not written);
            the others have the time of the commit. Refused with `times` when they go back, or behind the head's `changed_at`, or when
            there are more of them than entries. When every entry has one and `head` does not change, the last of them is the time of
            the commit: those that the run has seen since are not much younger.
        approvals: A request that is put with votes which rest on decisions that stick (`Vote.sticky`) uses each of them once; refused with
            `sticky` where one of them does not answer it (the part names the decision).
        permits: Of intents, and of attempts that are announced. Between the conditions of the spends: `unauthorised` when a guard of the
            authority of one of them does not hold (the part names the row), `aged` when the answers to one are too old, or younger than the
            store's time (the operation). After them: `stopped` when a guard of the stops does not hold (the row). Each of these three says
            that it has to be asked anew.
    """

    run: Annotated[RunKey, PLAIN]
    worker: Annotated[WorkerId, PLAIN]
    epoch: Annotated[int, PLAIN]
    version: Annotated[int, PLAIN]
    digest: Annotated[bytes, PLAIN] = b""
    entries: Annotated[tuple[EntryRow, ...], PLAIN] = ()
    head: Annotated[HeadUpdate | None, PLAIN] = None
    operations: Annotated[tuple[OperationPut | OperationDrop, ...], PLAIN] = ()
    consumed: Annotated[tuple[str, ...], PLAIN] = ()
    outbox: Annotated[tuple[OutboxItem, ...], PLAIN] = ()
    approvals: Annotated[tuple[ApprovalPut | ApprovalExpire | ApprovalWithdraw, ...], PLAIN] = ()
    spends: Annotated[tuple[GrantSpend, ...], PLAIN] = ()
    answers: Annotated[tuple[Answer, ...], PLAIN] = ()
    next: Annotated[tuple[EntryRow, ...], PLAIN] = ()
    tasks: Annotated[tuple[TaskPut | TaskDrop, ...], PLAIN] = ()
    hold: Annotated[bool | None, PLAIN] = None
    times: Annotated[tuple[datetime, ...], PLAIN] = ()
    permits: Annotated[tuple[Permit, ...], PLAIN] = ()


class Restored(Struct, frozen=True):
    """That a run is older than a restore of the store, or was started by one that is: what it did since may be forgotten.

    Args:
        at: When the store was restored; not before the run's last change.
        until: Up to when nothing is forgotten.
    """

    at: Annotated[datetime, PLAIN]
    until: Annotated[datetime, PLAIN]


class StartRun(Struct, frozen=True, tag="start"):
    """Insert a run, or a new generation of a closed one.

    Applied when no run of that key exists and `generation` is 1, or when a closed one exists whose generation is one less.
    Anything else is a conflict that carries the existing head.

    Args:
        workflow: The name under which workers register it.
        fingerprint: SHA-256 of workflow name and arguments; equal ones attach.
        entries: `Started`, and `Taken` too when the run is born claimed. Refused with `seq` when there is none, or when they are not
            numbered from 0.
        worker: Born claimed by this worker, at epoch 1 or the former epoch + 1; or none, and `ready`.
        messages: In the inbox from the beginning; one whose id is known there already is that one. Refused with `other` when the one that
            is known has another digest.
        times: Of the first entries, where these are older than the run (a fork keeps its origin's); all others have the time of the
            commit. Refused with `times` when they go back, or beyond the commit's time, or when there are more of them than entries.
        origin: Of a child: the operation that starts it (`origin_of`).
        watch: Who is told of its end.
        released: Paused workers may move it, too: of a child as of its parent.
        restored: Of a child whose parent is older than a restore: it may have been started before, and that be forgotten.
    """

    run: Annotated[RunKey, PLAIN]
    workflow: Annotated[str, PLAIN]
    fingerprint: Annotated[str, PLAIN]
    entries: Annotated[tuple[EntryRow, ...], PLAIN]
    generation: Annotated[int, PLAIN] = 1
    worker: Annotated[WorkerId | None, PLAIN] = None
    messages: Annotated[tuple[Message, ...], PLAIN] = ()
    times: Annotated[tuple[datetime, ...], PLAIN] = ()
    origin: Annotated[str, PLAIN] = ""
    watch: Annotated[Watch | None, PLAIN] = None
    released: Annotated[bool, PLAIN] = False
    restored: Annotated[Restored | None, PLAIN] = None


class PutMessage(Struct, frozen=True, tag="message"):
    """Put an item into the inbox of a run's current generation. The same id again is applied without effect.

    Refused with `other` when the item that is known under the id has another digest.

    Args:
        early: Accept it although no run of that key exists yet: it waits for generation 1. Otherwise refused with `not_found`.
            A closed run refuses with `closed`; so does one that is ending, and one with `MAX_UNREAD` unread items with `full` (kinds of
            `CAPPED` only).
        generation: Only this one is meant; another one refuses with `generation`. 0 for whichever is there.
        origin: Only a run that was started by this operation is meant; another one refuses with `origin`. Empty for any.
        incarnation: Only the run that this generation began is meant, and those that follow by roll-over; another one refuses with
            `incarnation`, unless that run has taken the same message already. 0 for whichever is there.
    """

    run: Annotated[RunKey, PLAIN]
    message: Annotated[Message, PLAIN]
    early: Annotated[bool, PLAIN] = False
    generation: Annotated[int, PLAIN] = 0
    origin: Annotated[str, PLAIN] = ""
    incarnation: Annotated[int, PLAIN] = 0


class Decide(Struct, frozen=True, tag="decide"):
    """Decide on a pending request in one conditional update, and put the decision into the run's inbox with it.

    Refused, in this order, with `unknown`, `decided`, `edited`, `withdrawn`, `expired` (by the store's clock), `mismatch` (another hash than
    the request's), `role` (another one is asked), for a yes or an edit with `self` (four eyes, or barred), for a yes with `voted` (said yes
    before), for an edit with `uneditable` (the terms take none, or it says yes as well), with `sticky` where it may not stick as it says, and with `stale` (a guard does not hold; the part
    names the row). Before all that: the same `message_id` again is applied without effect, or refused with `other` when the digests differ.

    A no closes the request. A yes is a vote, and the last one that the terms need closes it. An edit closes it as `edited`. Nobody in
    particular (an empty `by`) is one person, and never one of whom it is known that he may where somebody may not.

    Args:
        seen_sha256: The hash that the approver was shown.
        message: The inbox item (`MessageKind.DECISION`), put for each decision that is accepted; the store stamps the time, and what came
            of it (`Message.result`).
        role: In which it is decided; empty where no role is asked.
        behalf: Whose delegate the approver is; counts as a person who has said the same.
        edit: With `approved` false: not this, but something else, which the message says.
        guards: The rows by which the approver was found to be authorised.
        sticky: What of it is to stick. Its row is made with the decision, and the tenant's control row `sticky` goes to its next version.
    """

    run: Annotated[RunKey, PLAIN]
    approval_id: Annotated[str, PLAIN]
    seen_sha256: Annotated[str, PLAIN]
    approved: Annotated[bool, PLAIN]
    by: Annotated[str, PLAIN]
    message: Annotated[Message, PLAIN]
    role: Annotated[str, PLAIN] = ""
    behalf: Annotated[str, PLAIN] = ""
    edit: Annotated[bool, PLAIN] = False
    guards: Annotated[tuple[Guard, ...], PLAIN] = ()
    sticky: Annotated[StickyPut | None, PLAIN] = None


class RevokeSticky(Struct, frozen=True, tag="revoke_sticky"):
    """Take a decision back that sticks, also one that cannot be read: it answers nothing any more. The tenant's control row `sticky` goes to its next version.

    Refused, in this order, with `unknown`, with `revoked` where it was taken back before, and with `stale` where a guard does not hold.

    Args:
        guards: The rows by which whoever takes it back was found to be authorised.
    """

    tenant: Annotated[str, PLAIN]
    sticky_id: Annotated[str, PLAIN]
    by: Annotated[str, PLAIN]
    reason: Annotated[bytes, PAYLOAD] = b""
    guards: Annotated[tuple[Guard, ...], PLAIN] = ()


class Terminate(Struct, frozen=True, tag="terminate"):
    """End a run without running it: no entry is read, no payload loaded, so it works on any run.

    The store bumps the epoch, so that the owner is fenced. Refused with `not_found` or `closed`; with `origin` when `origin` is given
    and another operation, or none, started the run; with `incarnation` when `incarnation` is given and another generation began it;
    with `saga` while a saga of the run is open, unless `abandon` is given.

    Args:
        abandon: What its sagas did may stay.
    """

    run: Annotated[RunKey, PLAIN]
    by: Annotated[str, PLAIN]
    reason: Annotated[str, PLAIN]
    origin: Annotated[str, PLAIN] = ""
    incarnation: Annotated[int, PLAIN] = 0
    abandon: Annotated[bool, PLAIN] = False


class Release(Struct, frozen=True, tag="release"):
    """Let paused workers move an open run. Refused with `not_found` or `closed`.

    Args:
        trust: Somebody vouches that nothing of it was forgotten by a restore.
    """

    run: Annotated[RunKey, PLAIN]
    trust: Annotated[bool, PLAIN] = False


class FinishTask(Struct, frozen=True, tag="finish_task"):
    """Take a task off the worker that has it, and put what came of it into the run's inbox, in one.

    Fenced when the worker's lease is over, or the task is not its own any more: dropped, replaced, given to another, or gone with its
    run; then no message is put. The same message again is applied without effect.

    Args:
        message: The outcome (`MessageKind.OUTCOME`). None gives the task back: it is offered again at once.
    """

    run: Annotated[RunKey, PLAIN]
    generation: Annotated[int, PLAIN]
    operation: Annotated[str, PLAIN]
    attempt: Annotated[int, PLAIN]
    worker: Annotated[WorkerId, PLAIN]
    message: Annotated[Message | None, PLAIN] = None


class BeatTask(Struct, frozen=True, tag="beat_task"):
    """Keep what the attempt of a task has said of itself, for whoever makes that attempt again.

    Fenced as `FinishTask` is. Written twice it is written once.

    Args:
        progress: JSON of the details of its last beat.
    """

    run: Annotated[RunKey, PLAIN]
    generation: Annotated[int, PLAIN]
    operation: Annotated[str, PLAIN]
    attempt: Annotated[int, PLAIN]
    worker: Annotated[WorkerId, PLAIN]
    progress: Annotated[bytes, PAYLOAD]


class BeatOperation(Struct, frozen=True, tag="beat_operation"):
    """Whoever works outside on a step that was handed out says that it is alive: one beat more, heard of now.

    Refused, in this order, with `not_found`, `generation` (the run's present one is another), `closed`, and `awaits`: the operation is not
    handed out, now or any more. Wakes nobody, and appends nothing. Each is a beat, also one that is sent again.

    Args:
        progress: JSON of what the next attempt may go on from; empty leaves what is there.
    """

    run: Annotated[RunKey, PLAIN]
    generation: Annotated[int, PLAIN]
    operation: Annotated[str, PLAIN]
    progress: Annotated[bytes, PAYLOAD] = b""


class ClearOutbox(Struct, frozen=True, tag="clear_outbox"):
    """The relay has seen to these items of `run`; in the same moment the run is told what came of them.

    Args:
        answers: Put into the run's own inbox as by `PutMessage`; not when it has ended, or is of another generation by now: nobody
            waits for them then.
        generation: For which the answers are.
    """

    run: Annotated[RunKey, PLAIN]
    numbers: Annotated[tuple[int, ...], PLAIN]
    answers: Annotated[tuple[Message, ...], PLAIN] = ()
    generation: Annotated[int, PLAIN] = 0


class PutWatch(Struct, frozen=True, tag="put_watch"):
    """Let the end of a run be told to a watcher. The same watch again is applied without effect.

    Refused with `not_found`, or `closed` when it has ended already.
    """

    run: Annotated[RunKey, PLAIN]
    watch: Annotated[Watch, PLAIN]


class DropWatch(Struct, frozen=True, tag="drop_watch"):
    """Tell a watcher nothing more. No error when there is no such watch."""

    run: Annotated[RunKey, PLAIN]
    watch: Annotated[Watch, PLAIN]


class PutControl(Struct, frozen=True, tag="control"):
    """Compare and set a control row (kill switch, policy version). Conflict when `version` is not the current one.

    Args:
        version: 0 for a row that does not exist; becomes `version + 1`.
    """

    tenant: Annotated[str, PLAIN]
    name: Annotated[str, PLAIN]
    version: Annotated[int, PLAIN]
    body: Annotated[bytes, PAYLOAD]


Change: TypeAlias = (
    RunChange
    | StartRun
    | PutMessage
    | Decide
    | RevokeSticky
    | Terminate
    | Release
    | ClearOutbox
    | PutWatch
    | DropWatch
    | PutControl
    | FinishTask
    | BeatTask
    | BeatOperation
    | RequestChange
    | NoticeChange
)


class RunHead(Struct, frozen=True):
    """A run's row: indexes and the fence. The truth about the run is its journal.

    Args:
        generation: From 1; one more for each re-use of the id or roll-over.
        workflow: Of the present generation.
        fingerprint: Of the start; a roll-over leaves it, so that the same start again attaches.
        epoch: Of the last claim.
        version: Number of owned changes applied since the start; a roll-over is one of them.
        next_seq: Position of the next entry.
        digest: Of the last owned change.
        mail: Whether there are messages that the owner has not consumed.
        lapses: Owners that died in a row without any new entry between.
        changed_at: When the last owned change was committed; entry times never go below it.
        incarnation: The generation that the last start began: later ones are roll-overs, and share its inbox.
        origin: Of a child: the operation that started it (`origin_of`). Generations that follow by roll-over keep it.
        ended_by: Who terminated it.
        released: Paused workers may move it, too; until one that is not paused takes it.
        restored: It is older than a restore of the store, and nobody has vouched that nothing of it was forgotten. A roll-over keeps it.
    """

    run: Annotated[RunKey, PLAIN]
    generation: Annotated[int, PLAIN]
    workflow: Annotated[str, PLAIN]
    fingerprint: Annotated[str, PLAIN]
    status: Annotated[Status, PLAIN]
    reason: Annotated[str, PLAIN]
    owner: Annotated[WorkerId | None, PLAIN]
    epoch: Annotated[int, PLAIN]
    version: Annotated[int, PLAIN]
    next_seq: Annotated[int, PLAIN]
    digest: Annotated[bytes, PLAIN]
    wake_at: Annotated[datetime | None, PLAIN]
    mail: Annotated[bool, PLAIN]
    lapses: Annotated[int, PLAIN]
    created_at: Annotated[datetime, PLAIN]
    changed_at: Annotated[datetime, PLAIN]
    note: Annotated[bytes, PAYLOAD] = b""
    incarnation: Annotated[int, PLAIN] = 1
    origin: Annotated[str, PLAIN] = ""
    ended_by: Annotated[str, PLAIN] = ""
    released: Annotated[bool, PLAIN] = False
    restored: Annotated[Restored | None, PLAIN] = None


class Applied(Struct, frozen=True):
    """Written, or found written already.

    Args:
        at: The commit's time by the store's clock: the time of its entries.
        epoch: Of the run, for a `StartRun` that was born claimed.
        outbox: Whether there is something in the run's outbox because of it. A hint: a change that is found written says nothing.
        request: The record as it stands now, for a change of a request; None where it has gone.
        removed: How many records, for `PurgeRequests`.
        notices: What was taken, for `TakeNotices`.
    """

    at: datetime
    epoch: int = 0
    outbox: bool = False
    request: RequestRow | None = None
    removed: int = 0
    notices: tuple[DueNotice, ...] = ()


class Fenced(Struct, frozen=True):
    """The worker does not hold the run, or its lease has lapsed. It drops the run and writes nothing more for it."""

    why: str


class Conflict(Struct, frozen=True):
    """Something else stands there.

    Args:
        head: For `StartRun`: the run that has the id, or None where no run has it and a later generation was to start. For `RunChange`:
            the run as it stands.
        version: For `PutControl` and `RunChange`: the current version.
        request: For a change of a request: the record that stands there, or None where there is none.
    """

    head: RunHead | None = None
    version: int = 0
    request: RequestRow | None = None


class Refused(Struct, frozen=True):
    """A condition of the change does not hold; nothing of it was written.

    Args:
        reason: A stable word, named by the kind of change. Of any change: `unstorable` (no store can keep it) and `corrupt` (a
            row that it concerns cannot be read).
        part: What the condition was about: an approval, an operation, a message; the field that is `unstorable`; the type of the
            error met in the row that is `corrupt`.
    """

    reason: str
    part: str = ""


class Unknown(Struct, frozen=True):
    """Whether it was written is not known. Send the same change again: an applied one is recognised."""

    why: str


Verdict: TypeAlias = Applied | Fenced | Conflict | Refused | Unknown


def born_head(change: StartRun, verdict: Applied) -> RunHead:
    """Return the row of a run that was born claimed."""
    return RunHead(
        run=change.run,
        generation=change.generation,
        workflow=change.workflow,
        fingerprint=change.fingerprint,
        status=Status.RUNNING,
        reason="",
        owner=change.worker,
        epoch=verdict.epoch,
        version=0,
        next_seq=len(change.entries),
        digest=b"",
        wake_at=None,
        mail=True,
        lapses=0,
        created_at=verdict.at,
        changed_at=verdict.at,
        origin=change.origin,
        incarnation=change.generation,
        released=change.released,
        restored=change.restored,
    )


def fingerprint_of(workflow: str, arguments: bytes) -> str:
    """Return what two starts have in common that are one: SHA-256 of workflow name and arguments, in hex."""
    return hashlib.sha256(workflow.encode() + b"\0" + arguments).hexdigest()


def digest_of(change: RunChange) -> bytes:
    """Return SHA-256 over everything in `change` but its digest, and over what each part of it is; nothing for one that no store takes."""
    try:
        plain = msgspec.structs.replace(change, digest=b"") if change.digest else change
        encoded = msgspec.msgpack.encode(plain)
    except (OverflowError, UnicodeEncodeError):
        return b""
    return hashlib.sha256(encoded).digest()


class WorkerRow(Struct, frozen=True):
    """A worker as others see it.

    Args:
        build: Hash of the code that it runs.
        workflows: Names that it has registered.
        lease: How long the worker may be silent.
        queues: Whose tasks it takes.
        paused: It moves only what is released.
    """

    worker: Annotated[WorkerId, PLAIN]
    host: Annotated[str, PLAIN]
    pid: Annotated[int, PLAIN]
    build: Annotated[str, PLAIN]
    workflows: Annotated[tuple[str, ...], PLAIN]
    lease: Annotated[timedelta, PLAIN]
    queues: Annotated[tuple[str, ...], PLAIN] = ()
    paused: Annotated[bool, PLAIN] = False


class StampedMessage(Struct, frozen=True):
    """An inbox item with the time and order of its arrival."""

    message: Message
    at: datetime
    number: int


class MessageState(Struct, frozen=True):
    """What has become of an update.

    Args:
        generation: Of the run to which it belongs: the latest one that knows its id.
        consumed: Whether the run has taken it in.
        over: Whether that run has ended; then there is an answer, or there will be none.
        answer: JSON of the `UpdateAnswered` entry, where it is answered.
    """

    generation: Annotated[int, PLAIN]
    consumed: Annotated[bool, PLAIN]
    over: Annotated[bool, PLAIN] = False
    answered: Annotated[bool, PLAIN] = False
    answer: Annotated[bytes, PAYLOAD] = b""


class ApprovalRow(Struct, frozen=True):
    """An approval as it stands.

    Args:
        state: `pending`, `approved`, `denied`, `edited`, `expired` or `withdrawn`.
        spent: For each cover, the operation it was spent to, or an empty string.
        by: Who decided it, the last one.
        votes: Who has said yes.
    """

    run: Annotated[RunKey, PLAIN]
    put: Annotated[ApprovalPut, PLAIN]
    state: Annotated[str, PLAIN]
    spent: Annotated[tuple[str, ...], PLAIN]
    requested_at: Annotated[datetime, PLAIN]
    decided_at: Annotated[datetime | None, PLAIN] = None
    by: Annotated[str, PLAIN] = ""
    votes: Annotated[tuple[Vote, ...], PLAIN] = ()


class DueNotice(Struct, frozen=True):
    """A notice that is to be sent now, with the request of which it tells.

    Args:
        workflow: Of the run that asks.
    """

    notice: NoticeRow
    asked: ApprovalRow
    workflow: str
