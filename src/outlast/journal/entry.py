"""What a journal can hold: a closed union of frozen entries, and the row that each becomes.

An entry is a fact that was committed; replay is a fold over entries. Values inside entries are JSON text of their own
(`Raw`), encoded and decoded by the types that the *code* names, so this module never knows a user's type.

A row keeps kind, operation and name beside the sealed-able body: those three are plain, the body is a payload.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cache
from typing import Annotated, Any, Literal, NewType, TypeAlias, get_args

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from outlast.errors import DecodeError
from outlast.journal.asking import (
    AskedAgain,
    AskedBy,
    AskedFor,
    Edited,
    Moment,
    Precondition,
    Terms,
    Vote,
)
from outlast.journal.failure import Failure, is_too_deep
from outlast.journal.parse import NotJsonError, parse_as
from outlast.journal.plan import VALUE_NESTING, printable

OperationId = NewType("OperationId", str)
"""`{task path}:{number}`, as `r:3` or `r.2:1`; empty where an entry belongs to no operation."""

NO_OPERATION = OperationId("")

ENTRY_NESTING = VALUE_NESTING + 8
"""Deepest nesting of an entry's JSON: a value, inside an entry, inside an alarm about it."""

Durability: TypeAlias = Literal["sync", "async", "exit"]
"""When the outcomes of a run are written: before the workflow sees them, while it goes on, or when it must be."""

EffectPolicy: TypeAlias = Literal["refuse", "same_key", "new_key"]
"""What becomes of an effect of a fork that its origin did not settle: it is refused, or made under the key that the origin would have
used, or made under a key of the fork's own."""


class RunName(Struct, frozen=True):
    """What a run's code is told of its own name."""

    run_id: str
    generation: int = 1


class Cover(Struct, frozen=True):
    """One action that an approval covers.

    Args:
        effect: The effect's name.
        action_sha256: For a call, the hash of its whole effective action; empty for a pattern.
        where: For a pattern, the canonical JSON of each bound parameter by name; empty for a call.
        agent: In whose name it was asked for: calls in another one's are not covered. Empty for calls in anybody's.
        version: For a pattern, of the effect that it was asked for; the hash of a call holds it. Absent for none.
    """

    effect: str
    action_sha256: str = ""
    where: dict[str, str] = {}
    agent: str = ""
    version: str | UnsetType = UNSET


class GrantUse(Struct, frozen=True):
    """Which cover of which approval an intent spends."""

    approval_id: str
    cover: int


class Parent(Struct, frozen=True):
    """The operation of a run that started another run."""

    run_id: str
    generation: int
    operation: OperationId


class Started(Struct, frozen=True, tag="started", omit_defaults=True):
    """The run exists.

    Args:
        arguments: JSON object of the workflow's bound arguments by parameter name.
        seed: 16 random bytes; every generator of the run is derived from them.
        namespace: The `workflow_id` of idempotency keys: run id, tenant and `~n`.
        principal: Who started it; of a child, who started its parent.
        requesters: Of a fork, and of a child of one: who else has started it: who started its origin.
        timeout_seconds: How long the run may take, counted from this entry, or from `Forked`; None for as long as it likes.
        ends_at: Of a later generation: when the time is over that the first one was given. A fork has its time anew.
        parent: Of a child: the operation of its parent. In a fork the code is told it up to `Forked`, which names another one or none.
        effects: Of a fork, and of a child of one: what becomes of effects whose outcome it does not know.
        keys: Of a fork, and of a child of one, in its first generation: the namespace of its keys under `same_key`.
        known_as: Of a fork: the name under which its first entries were written; the code that replays them is told it again.
        durability: Of this generation, and of those after it.
        is_last: Of a fork: its origin had ended, so that no later generation of that can have keys. Under `same_key` the fork's own
            next generation is bound by nothing, then.
    """

    name: str
    arguments: Raw
    seed: bytes
    namespace: str
    principal: str = ""
    parent: Parent | UnsetType = UNSET
    timeout_seconds: float | None = None
    ends_at: Moment | None = None
    effects: EffectPolicy | Literal[""] = ""
    keys: str = ""
    known_as: RunName | None = None
    durability: Durability = "sync"
    is_last: bool = False
    requesters: tuple[str, ...] = ()

    @property
    def timeout(self) -> timedelta | None:
        """How long the run may take; None for as long as it likes."""
        if self.timeout_seconds is None:
            return None
        try:
            return timedelta(seconds=self.timeout_seconds)
        except OverflowError:
            return timedelta.max

    def deadline(self, at: datetime) -> datetime | None:
        """Return when the run's time is over; None when it may take as long as it likes.

        Args:
            at: When the run began: when this entry was committed, or the last fork was made.
        """
        if self.ends_at is not None:
            return self.ends_at
        try:
            return None if self.timeout is None else at + self.timeout
        except OverflowError:
            return datetime.max.replace(tzinfo=at.tzinfo)


class Taken(Struct, frozen=True, tag="taken", omit_defaults=True):
    """A worker took the run up for the first time; `now()` begins here.

    Args:
        python: The interpreter's minor version, as `3.11`.
        library: The version of Outlast.
        build: Of the worker, where the workflow is pinned: no other one moves this generation. Empty for any.
    """

    python: str
    library: str
    build: str = ""


class StepCompleted(Struct, frozen=True, tag="step_completed"):
    """A step returned."""

    operation: OperationId
    name: str
    value: Raw
    by: str = ""
    reason: str = ""


class StepFailed(Struct, frozen=True, tag="step_failed"):
    """A step failed for good: its policy allows no further attempt."""

    operation: OperationId
    name: str
    failure: Failure
    by: str = ""
    reason: str = ""


class EffectIntended(Struct, frozen=True, tag="effect_intended", omit_defaults=True):
    """The authorisation point: from here on the effect may happen, and its key is read, never computed.

    Args:
        requested: JSON object of the arguments as the workflow gave them.
        effective: The same after every hook; what is hashed, shown and run.
        action_sha256: Hash of name, version and effective arguments.
        number: Which equal call this is, from 1 (`repeats=True`).
        grant: The approval that was spent for it.
        policy_version: The version of the rules that allowed it.
        epoch: Of the lease under which it was intended.
        compensation: Name of the effect that undoes it; empty for none.
        needs_result: The compensation takes what the effect returned.
        saga: The outermost saga that was open around the call; empty for none.
        compensates: Of a compensation: the operation that it undoes.
        asked: Requests that were made for this call, and approved; the one cover of each was spent for it.
        requested_sha256: Of name, version and requested arguments, where these are not the effective ones: by this, equal calls are found.
        checked_at: When it was last asked whether who approved may still do so, and whether what they relied on still holds; by the
            store's clock. None where nothing had to be asked.
        agent: In whose name it was called: see `outlast.agent`.
        definition: Of a foreign tool: the hash of the definition by which it was let through. Absent where nothing has let it through.
    """

    operation: OperationId
    name: str
    key: str
    requested: Raw
    effective: Raw
    action_sha256: str
    number: int = 1
    grant: GrantUse | None = None
    policy_version: str = ""
    epoch: int = 0
    compensation: str = ""
    needs_result: bool = False
    saga: OperationId = NO_OPERATION
    compensates: OperationId = NO_OPERATION
    asked: tuple[str, ...] = ()
    requested_sha256: str = ""
    checked_at: Moment | None = None
    agent: str = ""
    definition: str | UnsetType = UNSET


class EffectRefused(Struct, frozen=True, tag="effect_refused"):
    """The gate or the store refused the effect before any attempt."""

    operation: OperationId
    name: str
    failure: Failure


class EffectCompleted(Struct, frozen=True, tag="effect_completed"):
    """The effect happened.

    Args:
        source: How it is known: `attempt`, `probe`, `operator`, `late`, or `fork` for what the origin of a fork settled.
        by: Who said so, for `operator`.
    """

    operation: OperationId
    name: str
    value: Raw
    source: str = "attempt"
    by: str = ""
    reason: str = ""


class EffectFailed(Struct, frozen=True, tag="effect_failed", omit_defaults=True):
    """The effect will not be tried again; it did not happen, unless that is unknown.

    Args:
        unknown: Its receiver honours the key and has never answered: it may have happened. An equal call has the same key.
    """

    operation: OperationId
    name: str
    failure: Failure
    source: str = "attempt"
    by: str = ""
    reason: str = ""
    unknown: bool = False


class Attempted(Struct, frozen=True, omit_defaults=True):
    """An attempt whose effect is in doubt.

    Args:
        number: Counted from 1.
        began_at: When, by the store's clock, at the latest; None where nobody knows.
        ended: How, as far as that is known.
    """

    number: int
    began_at: Moment | None = None
    ended: str = ""


class Probed(Struct, frozen=True):
    """What a probe said of an effect in doubt.

    Args:
        at: By the store's clock.
        said: Its answer in words.
    """

    at: Moment
    said: str


class EffectInDoubt(Struct, frozen=True, tag="effect_in_doubt", omit_defaults=True):
    """Somebody must say what became of the effect: whether it happened is not known, or it is a compensation that gave up.

    Args:
        why: What ended the last attempt, and what the probe said.
        attempts: The last ones, oldest first.
        probes: The last answers, oldest first.
        failure: Of a compensation that gave up: of its last attempt, or why it may not be made.
    """

    operation: OperationId
    name: str
    why: str
    attempts: tuple[Attempted, ...] = ()
    probes: tuple[Probed, ...] = ()
    failure: Failure | None = None


class EffectCleared(Struct, frozen=True, tag="effect_cleared"):
    """An operator established that the effect did not happen: it may be attempted again under the same intent."""

    operation: OperationId
    name: str
    by: str = ""
    reason: str = ""


class EffectCompensating(Struct, frozen=True, tag="effect_compensating", omit_defaults=True):
    """An operator has an effect in doubt undone, whether it happened or not: it is settled, and its compensation begins.

    Args:
        value: JSON of what it returned, or would have, where its compensation takes that.
    """

    operation: OperationId
    name: str
    value: Raw = Raw(b"null")
    by: str = ""
    reason: str = ""


class SagaAborted(Struct, frozen=True, tag="saga_aborted"):
    """The body of a saga raised: nothing new begins in it, and what it did is undone.

    Args:
        operation: That stands for the saga.
        failure: What it raised.
    """

    operation: OperationId
    failure: Failure


class SagaEnded(Struct, frozen=True, tag="saga_ended"):
    """A saga has ended.

    Args:
        outcome: `kept` when its body returned; `compensated` when all that it did was undone, `partly compensated` when not all.
    """

    operation: OperationId
    outcome: Literal["kept", "compensated", "partly compensated"]


class TimerFired(Struct, frozen=True, tag="timer_fired"):
    """A durable timer came due."""

    operation: OperationId


class MessageReceived(Struct, frozen=True, tag="message_received"):
    """A message was taken from the inbox."""

    message_id: str
    name: str
    value: Raw
    sender: str = ""


class UpdateReceived(Struct, frozen=True, tag="update_received"):
    """A message that wants an answer was taken from the inbox."""

    message_id: str
    name: str
    value: Raw
    sender: str = ""


class UpdateAnswered(Struct, frozen=True, tag="update_answered"):
    """An update has its answer; the same stands in the message's row, where its sender reads it.

    Args:
        value: JSON of what the handler returned.
        failure: What it raised, or why the update was rejected; then there is no value.
        rejected: It was refused, and nothing of it was done.
        cancelled: It was not done, because the run was asked to stop.
    """

    message_id: str
    name: str
    value: Raw = Raw(b"null")
    failure: Failure | None = None
    rejected: bool = False
    cancelled: bool = False


class ApprovalRequested(Struct, frozen=True, tag="approval_requested", omit_defaults=True):
    """A person was asked.

    Args:
        operation: Of the request; of the effect, where a declaration or a policy wants the effect approved.
        approval_id: Never again that of another request: one that is escalated or edited is closed, and another one made.
        role: Who may decide.
        subject: JSON of what is shown.
        subject_sha256: Hash of all that is shown: what the approver's decision must carry.
        expires_at: Decide before this.
        use_by: Begin the covered effects before this.
        terms: How it is decided, and who is asked next. None in journals of an older library: one yes of that role.
        kind: Whether a yes is asked for, or an answer.
        requesters: Who started the run; of a fork, also who made it.
        preconditions: On what a yes rests.
        requested: Of a request for an effect: JSON object of the arguments as the workflow gave them.
        effective: The same after every hook and edit: what would run.
        source: Why an effect is asked for: `declared`, `policy`, or `purpose` for a second call of one purpose; empty for what the
            workflow's code asks.
        policy_version: Of the rules that want it, for `policy`.
        rule: Which of them.
        rung: Who is asked, of `terms`: 0 for the first.
        again: Why it follows another one of the operation.
        votes: Who has said yes to just this already: the approver who edited it.
        barred: Who may not say yes: the approver who edited it, where somebody else has to.
        version: Of a request for an effect: of its declaration.
        server: Of a foreign tool: whose it is, and by which definition.
        turn: Which turn of the run it is: another one after each message that it is sent.
    """

    operation: OperationId
    approval_id: str
    role: str
    subject: Raw
    subject_sha256: str
    covers: tuple[Cover, ...]
    expires_at: Moment
    use_by: Moment
    terms: Terms | None = None
    kind: AskedFor = "approval"
    requesters: tuple[str, ...] = ()
    preconditions: tuple[Precondition, ...] = ()
    requested: Raw = Raw(b"null")
    effective: Raw = Raw(b"null")
    source: AskedBy = ""
    policy_version: str = ""
    rule: str = ""
    rung: int = 0
    again: AskedAgain = ""
    votes: tuple[Vote, ...] = ()
    barred: tuple[str, ...] = ()
    version: str = ""
    server: str = ""
    turn: str = ""


class ApprovalVoted(Struct, frozen=True, tag="approval_voted", omit_defaults=True):
    """A person said yes, and more have to."""

    operation: OperationId
    approval_id: str
    by: str
    at: Moment
    reason: str = ""
    behalf: str = ""


class ApprovalEdited(Struct, frozen=True, tag="approval_edited", omit_defaults=True):
    """A person wants something else than what is asked: this request is closed, and another one is made.

    Args:
        edits: What the covered calls should be.
    """

    operation: OperationId
    approval_id: str
    by: str
    at: Moment
    edits: tuple[Edited, ...]
    reason: str = ""
    behalf: str = ""


class ApprovalDecided(Struct, frozen=True, tag="approval_decided", omit_defaults=True):
    """It was decided in time, on the hash that was asked.

    Args:
        by: Who decided it: the last one of those who said yes, or who said no.
        behalf: Whose delegate they were.
        answer: JSON of the answer to a question.
    """

    operation: OperationId
    approval_id: str
    approved: bool
    by: str
    reason: str
    subject_sha256: str
    decided_at: Moment
    behalf: str = ""
    answer: Raw = Raw(b"null")


class ApprovalExpired(Struct, frozen=True, tag="approval_expired"):
    """Nobody decided in time."""

    operation: OperationId
    approval_id: str


class CancelRequested(Struct, frozen=True, tag="cancel_requested"):
    """Somebody asked the run to stop and clean up."""

    by: str = ""
    reason: str = ""


class PauseRequested(Struct, frozen=True, tag="pause_requested"):
    """Somebody asked that the run begin nothing until it is resumed."""

    by: str = ""
    reason: str = ""


class ResumeRequested(Struct, frozen=True, tag="resume_requested"):
    """Somebody asked the run to go on."""

    by: str = ""
    reason: str = ""


class RunTimedOut(Struct, frozen=True, tag="run_timed_out"):
    """The run's time was over before its end: it stops and cleans up."""


class ChildRequested(Struct, frozen=True, tag="child_requested", omit_defaults=True):
    """A child is on its way: from here on it will be started, whatever becomes of this run.

    Args:
        name: Its workflow.
        run_id: The id that the code gives it.
        arguments: JSON object of the bound arguments by parameter name.
        parent_close: What the end of this run means to it: `terminate`, `cancel` or `abandon`.
        own_id: The id that the workflow names, where it names one.
        number: Which equal call this is, from 1.
        as_run: In a fork: the run that stands for it, a child of the origin or the retry of one.
    """

    operation: OperationId
    name: str
    run_id: str
    arguments: Raw
    parent_close: str
    own_id: str = ""
    number: int = 1
    as_run: str = ""


class ChildStarted(Struct, frozen=True, tag="child_started"):
    """The child exists."""

    operation: OperationId


class ChildRefused(Struct, frozen=True, tag="child_refused"):
    """The child was not started, and will not be: its id is taken, or a fork may not start it."""

    operation: OperationId
    failure: Failure


class RunEnded(Struct, frozen=True, tag="run_ended"):
    """A child, or a run that is watched, has ended.

    Args:
        status: `completed`, `failed`, `cancelled` or `terminated`.
        value: JSON of what a completed one returned.
        failure: What another one raised; of a terminated one nothing.
        reason: Of a terminated one: why.
    """

    operation: OperationId
    run_id: str
    status: str
    value: Raw = Raw(b"null")
    failure: Failure | None = None
    reason: str = ""


class MessageSent(Struct, frozen=True, tag="message_sent", omit_defaults=True):
    """A message to another run is on its way.

    Args:
        name: Of the signal; empty for a cancel.
        kind: `signal` or `cancel`.
        value: JSON of the signal's value, or of who cancels and why.
        number: Which equal message this is, from 1.
        child: The operation that has started the run which is meant; empty for whichever run has the id.
        message_id: In a fork: the id that the message would have, had its origin sent it; empty for the run's own.
    """

    operation: OperationId
    name: str
    run_id: str
    kind: str
    value: Raw
    number: int = 1
    child: OperationId = NO_OPERATION
    message_id: str = ""


class WatchRequested(Struct, frozen=True, tag="watch_requested"):
    """The run is to be told of the end of another one."""

    operation: OperationId
    run_id: str


class MessageAnswered(Struct, frozen=True, tag="message_answered"):
    """The other run's inbox took the message; or why it did not, or why the run cannot be watched."""

    operation: OperationId
    failure: Failure | None = None


class AlarmRaised(Struct, frozen=True, tag="alarm_raised"):
    """Something came that contradicts or follows what was recorded; kept, never acted on.

    Args:
        what: A stable word: `late_outcome`, `late_decision`, `unfit_outcome`, `unfit_message`, `unfit_acceptance`,
            `unreadable_message`.
    """

    operation: OperationId
    what: str
    detail: Raw


class Published(Struct, frozen=True, tag="published"):
    """The run published a value under a name: from here on it is read from outside.

    Args:
        operation: Empty where a generation begins with what the one before it had published.
    """

    operation: OperationId
    name: str
    value: Raw


class KnownEffect(Struct, frozen=True):
    """What a fork knows of an effect that was intended in its origin.

    Args:
        action_sha256: Together with name and number: which call it was.
        run_id: Where it was intended, as `operation`.
        key: Under which it was intended.
        outcome: `unknown` when it was in flight or in doubt, or failed and may have happened; `undone` when it happened and was
            compensated.
        value: JSON of the result, of a completed one.
        failure: Of a failed one.
        intended_at: When, by the store's clock: its receiver has known the key since then at the latest. None where nobody knows.
    """

    name: str
    action_sha256: str
    number: int
    run_id: str
    operation: OperationId
    key: str
    outcome: Literal["completed", "failed", "unknown", "undone"]
    value: Raw = Raw(b"null")
    failure: Failure | None = None
    intended_at: Moment | None = None


class KnownChild(Struct, frozen=True):
    """What a fork knows of a child that its origin asked for.

    Args:
        arguments_sha256: Hash of the arguments; with name, own id and number it says which call it was.
        own_id: The id that the workflow named, where it named one.
        operation: Of the origin, which asked for it.
        run_id: The child.
        parent: The operation that has started it, or was to start it: of the origin, or of a run of which that is a fork.
        outcome: How it ended: a status; `refused` when it was not started; `unknown` when it is open, or nobody knows.
        value: JSON of the result, of a completed one.
        failure: Of one that failed, was cancelled or refused.
        reason: Of a terminated one: why.
        as_run: The retry of that child, which was made with the fork and is its child from then on.
    """

    name: str
    arguments_sha256: str
    own_id: str
    number: int
    operation: OperationId
    run_id: str
    parent: Parent
    outcome: Literal["completed", "failed", "cancelled", "terminated", "refused", "unknown"]
    value: Raw = Raw(b"null")
    failure: Failure | None = None
    reason: str = ""
    as_run: str = ""


class KnownMessage(Struct, frozen=True):
    """What a fork knows of a message that its origin sent to another run.

    Args:
        to: The run; of one to a child, the operation of the origin that asked for the child.
        value_sha256: Hash of the value; empty for a cancel. With all before and the number it says which message it was.
        message_id: In the inbox of the other run.
        operation: Of the origin, which sent it.
        outcome: `sent` when that run's inbox took it, `failed` when not, `unknown` when nobody knows.
    """

    to: str
    kind: str
    name: str
    value_sha256: str
    number: int
    message_id: str
    operation: OperationId
    outcome: Literal["sent", "failed", "unknown"]
    failure: Failure | None = None


class Forked(Struct, frozen=True, tag="forked"):
    """The run is a fork: what stands before this entry was written by its origin, at the times that stand there.

    Args:
        known_as: The fork's own name, which its code is told from here on.
        origin: Whose entries they are.
        position: Of the first entry that was not kept, in the origin's journal.
        changed: The operation whose outcome was given anew, the last one before this; empty for none.
        effects: What becomes of effects, children and messages that are not among the known.
        known: The effects that the origin settled after the position or left unsettled, in order.
        children: The children of the origin that had not ended before the position.
        messages: What the origin sent to other runs and was not answered before the position.
        parent: Whose child the fork is from here on; none but of a child that was retried with its parent.
    """

    known_as: RunName
    origin: RunName
    position: int
    by: str
    reason: str
    effects: EffectPolicy
    changed: OperationId = NO_OPERATION
    known: tuple[KnownEffect, ...] = ()
    children: tuple[KnownChild, ...] = ()
    messages: tuple[KnownMessage, ...] = ()
    parent: Parent | None = None


class LeftOut(Struct, frozen=True, tag="left_out"):
    """In a fork: a request or intent of the origin stood here that was not settled before the position, so it is made anew.

    Args:
        what: The kind of the entry that stood here.
    """

    operation: OperationId
    name: str
    what: str


class ContinueSuggested(Struct, frozen=True, tag="continue_suggested"):
    """The journal is long: the workflow should go on in a new generation.

    Args:
        entries: How long it was when that was noticed.
        size_bytes: The same in bytes of its bodies.
    """

    entries: int
    size_bytes: int


class Patched(Struct, frozen=True, tag="patched"):
    """The code came to a patch, and went on as changed.

    Args:
        name: The id of the patch.
        deprecated: It was asked by `deprecate_patch`: code that does not know it replays this all the same.
    """

    name: str
    deprecated: bool = False


class Accepted(Struct, frozen=True, tag="accepted", omit_defaults=True):
    """An operator let something pass that would stop the run.

    Args:
        entry: Position of an `EffectIntended` of this journal whose arguments may differ from what the code asks.
        history: So many entries the journal may have.
        any_build: Workers of any build may move this generation from here on.
    """

    entry: int | None = None
    history: int | None = None
    any_build: bool = False
    by: str = ""
    reason: str = ""


class ContinuedAsNew(Struct, frozen=True, tag="continued_as_new"):
    """This generation is over, and the run goes on in the next one.

    Args:
        name: Of the workflow that goes on.
        arguments: JSON object of its bound arguments by parameter name.
    """

    name: str
    arguments: Raw


class Completed(Struct, frozen=True, tag="completed"):
    """The run returned."""

    value: Raw


Compensation: TypeAlias = Literal["", "compensated", "partly compensated"]
"""Whether what the sagas of a run did was undone before it ended; empty when none of them was aborted with anything to undo."""


class Failed(Struct, frozen=True, tag="failed", omit_defaults=True):
    """The run raised."""

    failure: Failure
    compensation: Compensation = ""


class Cancelled(Struct, frozen=True, tag="cancelled", omit_defaults=True):
    """The run ended by cancellation, or by an approval that was never given."""

    failure: Failure
    compensation: Compensation = ""


Entry: TypeAlias = (
    Started
    | Taken
    | StepCompleted
    | StepFailed
    | EffectIntended
    | EffectRefused
    | EffectCompleted
    | EffectFailed
    | EffectInDoubt
    | EffectCleared
    | EffectCompensating
    | SagaAborted
    | SagaEnded
    | TimerFired
    | MessageReceived
    | UpdateReceived
    | UpdateAnswered
    | ApprovalRequested
    | ApprovalVoted
    | ApprovalEdited
    | ApprovalDecided
    | ApprovalExpired
    | CancelRequested
    | PauseRequested
    | ResumeRequested
    | RunTimedOut
    | ChildRequested
    | ChildStarted
    | ChildRefused
    | RunEnded
    | MessageSent
    | WatchRequested
    | MessageAnswered
    | AlarmRaised
    | Published
    | Forked
    | LeftOut
    | ContinueSuggested
    | Patched
    | Accepted
    | ContinuedAsNew
    | Completed
    | Failed
    | Cancelled
)

KINDS: dict[str, type[Any]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Entry)}
"""Each entry type by the word that its row's `kind` column holds."""


class Marker(Struct, frozen=True):
    """Says of a stored field whether sealing leaves it readable."""

    readable: bool


PLAIN = Marker(readable=True)
PAYLOAD = Marker(readable=False)


class EntryRow(Struct, frozen=True):
    """An entry as a store keeps it.

    Args:
        seq: Position in the generation's journal, from 0, without gaps.
        turn: Entries with one turn number are delivered together.
        body: JSON object of the entry, its tag included.
    """

    seq: Annotated[int, PLAIN]
    turn: Annotated[int, PLAIN]
    kind: Annotated[str, PLAIN]
    operation: Annotated[str, PLAIN]
    name: Annotated[str, PLAIN]
    body: Annotated[bytes, PAYLOAD]


class StampedRow(Struct, frozen=True):
    """A row with the time at which the store committed it, monotonic per run."""

    row: EntryRow
    at: datetime


_encoder = msgspec.json.Encoder()


@cache
def _decoder() -> msgspec.json.Decoder[Entry]:
    """Made when the first entry is read: it knows every kind, and costs as much as loading some modules."""
    return msgspec.json.Decoder(Entry)


def to_row(entry: Entry, seq: int, turn: int) -> EntryRow:
    """Return the row that keeps `entry` at `seq`."""
    return EntryRow(
        seq=seq,
        turn=turn,
        kind=str(type(entry).__struct_config__.tag),
        operation=getattr(entry, "operation", NO_OPERATION),
        name=getattr(entry, "name", ""),
        body=_encoder.encode(entry),
    )


def from_row(row: EntryRow) -> Entry:
    """Return the entry that `row` keeps.

    Raises:
        DecodeError: The body is not an entry, or is not the one that its plain columns announce.
    """
    kind = printable(row.kind)
    try:
        entry = parse_as(_decoder(), row.body, nesting=ENTRY_NESTING)
    except NotJsonError as error:
        raise DecodeError(
            f"journal entry {row.seq} ({kind}) cannot be read: {error}",
            operation=printable(row.operation) or None,
            hint="the store was changed by hand, is damaged, or was written by a newer version of Outlast",
        ) from None
    tag = type(entry).__struct_config__.tag
    if tag != row.kind:
        raise DecodeError(
            f"journal entry {row.seq} announces '{kind}' and holds '{tag}'",
            hint="the store was changed by hand or is damaged",
        )
    if any(is_too_deep(failure) for failure in _failures_in(entry)):
        raise DecodeError(
            f"journal entry {row.seq} ({kind}) holds a failure that is nested deeper than any that is captured",
            hint="the store was changed by hand, is damaged, or was written by a newer version of Outlast",
        )
    return entry


def _failures_in(entry: Entry) -> list[Failure]:
    if isinstance(entry, Forked):
        known = (*entry.known, *entry.children, *entry.messages)
        return [one.failure for one in known if one.failure is not None]
    failure = getattr(entry, "failure", None)
    return [failure] if isinstance(failure, Failure) else []
