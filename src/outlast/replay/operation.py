"""What the machine remembers of each operation that the workflow began and that is not settled.

An operation is *open* while the workflow (or, for an intended effect, the world) waits for its outcome, *abandoned* once the
workflow stopped waiting. Entries for abandoned operations are expected and change nothing.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct, field

from outlast.journal.entry import (
    EffectInDoubt,
    EffectIntended,
    GrantUse,
    OperationId,
    RunEnded,
    UpdateAnswered,
    UpdateReceived,
)
from outlast.journal.failure import Failure
from outlast.replay.asking import Asking
from outlast.replay.context import (
    ApprovalRequest,
    ChildRequest,
    EffectRequest,
    MessageRequest,
    StepRequest,
    WatchRequest,
)
from outlast.replay.loop import TimerHandle
from outlast.replay.scope import Act, Scope
from outlast.replay.task import WorkflowFuture


class StepOperation(Struct, eq=False):
    """A step that runs."""

    operation: OperationId
    request: StepRequest
    future: WorkflowFuture[Any]
    scheduled_at: datetime | None = None


class EffectOperation(Struct, eq=False):
    """An effect: commanded, then intended, then settled.

    Args:
        number: Which equal call this is.
        followers: Equal calls made while this one was open, each with the saga in which it is; they take its outcome.
        scheduled_at: When it was asked for, where a deadline counts from it.
        bound: It was intended, here or in the origin of a fork: whoever waits for it waits until it is settled.
        scope: The saga in which it was begun.
        act: What that saga knows of it, once it is intended.
        is_stuck: A compensation that has given up, which `in_doubt` says too.
        used_at: When its key may have been used first.
        is_repeated: An equal call before it failed, and may have happened, under the same key.
        doubt: Position in the journal of the last doubt about it, cleared or not.
        cleared: Position of the last doubt that somebody cleared by saying that it did not happen.
        asking: What people are asked about it before it is intended.
        second: The request by which a person has said that it may be made although an earlier call had its purpose; empty for none.
    """

    operation: OperationId
    request: EffectRequest
    future: WorkflowFuture[Any]
    number: int
    grant: GrantUse | None
    match_sha256: str
    intent: EffectIntended | None = None
    in_doubt: str = ""
    followers: list[tuple[WorkflowFuture[Any], Scope | None]] = field(
        default_factory=list[tuple[WorkflowFuture[Any], Scope | None]]
    )
    scheduled_at: datetime | None = None
    bound: bool = False
    scope: Scope | None = None
    act: Act | None = None
    is_stuck: bool = False
    used_at: datetime | None = None
    is_repeated: bool = False
    doubt: int | None = None
    cleared: int | None = None
    asking: Asking = field(default_factory=Asking)
    second: str = ""

    @property
    def is_asking(self) -> bool:
        """Whether it waits for a person."""
        return self.intent is None and self.asking.waits

    def intended(self, entry: EffectIntended, at: datetime | None) -> None:
        """Note that it may happen from now on."""
        self.intent = entry
        if not self.is_repeated:
            self.used_at = at
        self.bind()

    def doubted(self, entry: EffectInDoubt, position: int) -> None:
        """Note that somebody must say what became of it.

        Args:
            position: Of the entry in the journal.
        """
        self.in_doubt, self.doubt = entry.why, position
        self.is_stuck = entry.failure is not None

    def clear(self, at: datetime | None) -> None:
        """Note that it is known not to have happened: its key, which its receiver need not know, is used from now on."""
        self.in_doubt, self.is_stuck, self.cleared = "", False, self.doubt
        self.used_at, self.is_repeated = at, False
        if self.scheduled_at is not None and self.request.compensates:
            # What undoes has its time anew: nothing is left undone because an operator came late.
            self.scheduled_at = at

    def futures(self) -> list[WorkflowFuture[Any]]:
        """Return the futures that wait for the outcome, the first caller's first."""
        return [self.future, *(future for future, _ in self.followers)]

    def withdraw(self, scope: Scope) -> tuple[list[WorkflowFuture[Any]], bool]:
        """Let those wait for it no longer who are inside a saga; the first one outside takes it over.

        Returns: Who was inside, and whether somebody waits outside.
        """
        callers = [(self.future, self.scope), *self.followers]
        inside = [one for one, at in callers if at is not None and at.is_within(scope)]
        outside = [one for one in callers if one[0] not in inside and not one[0].done()]
        if inside and outside:
            (self.future, self.scope), *self.followers = outside
        return inside, bool(outside)

    def bind(self) -> None:
        """Let nobody who waits for it be cancelled."""
        self.bound = True
        for future in self.futures():
            future.uncancellable = True


class TimerOperation(Struct, eq=False):
    """A durable timer of the loop."""

    operation: OperationId
    handle: TimerHandle


class ApprovalOperation(Struct, eq=False):
    """A request that waits for a person.

    Args:
        approval_id: Of the request that waits, or will when it is recorded.
    """

    operation: OperationId
    request: ApprovalRequest
    future: WorkflowFuture[Any]
    approval_id: str
    asking: Asking = field(default_factory=Asking)


class PublishOperation(Struct, eq=False):
    """A published value that is not recorded yet. Nobody waits for it."""

    operation: OperationId
    name: str


class UpdateOperation(Struct, eq=False):
    """An update whose answer is not recorded: it waits for its handler, is handled, or has come to an answer.

    Args:
        operation: `m{number}`, the path of the task that handles it.
        number: Its place among the messages of the journal.
    """

    operation: OperationId
    number: int
    message: UpdateReceived
    answer: UpdateAnswered | None = None


class ChildOperation(Struct, eq=False):
    """A child: commanded, then requested, then started, until it has ended. Nobody need wait for it.

    Args:
        starts: Who waits for its start.
        ends: Who waits for its end.
        end: How it ended.
        is_cancelled: Whether somebody who waits was cancelled, which is sent on once.
        number: Which equal call it is.
        refused: Why it was not started.
    """

    operation: OperationId
    request: ChildRequest
    run_id: str
    number: int = 1
    is_requested: bool = False
    is_started: bool = False
    starts: list[WorkflowFuture[Any]] = field(default_factory=list[WorkflowFuture[Any]])
    ends: list[WorkflowFuture[Any]] = field(default_factory=list[WorkflowFuture[Any]])
    end: RunEnded | None = None
    is_cancelled: bool = False
    refused: Failure | None = None


class SendOperation(Struct, eq=False):
    """A message to another run: commanded, then on its way, until it has been taken.

    Args:
        future: Who waits; nobody for the cancel that follows from a cancelled wait.
        number: Which equal message it is.
    """

    operation: OperationId
    request: MessageRequest
    future: WorkflowFuture[Any] | None
    number: int = 1
    is_requested: bool = False


class WatchOperation(Struct, eq=False):
    """A run whose end is waited for."""

    operation: OperationId
    request: WatchRequest
    future: WorkflowFuture[Any]
    is_requested: bool = False


Operation = (
    StepOperation
    | EffectOperation
    | TimerOperation
    | ApprovalOperation
    | PublishOperation
    | UpdateOperation
    | ChildOperation
    | SendOperation
    | WatchOperation
)

_NAMED = StepOperation | EffectOperation | ChildOperation | SendOperation


def name_of(operation: Operation) -> str:
    """Return the name of the step, effect, child's workflow, signal, update or published value; empty for what has none."""
    if isinstance(operation, PublishOperation):
        return operation.name
    if isinstance(operation, UpdateOperation):
        return operation.message.name
    return operation.request.name if isinstance(operation, _NAMED) else ""


def describe(operation: Operation) -> str:
    """Return kind, name and id in words."""
    kind = type(operation).__name__.removesuffix("Operation").lower()
    return f"{kind} {name_of(operation)}".strip() + f" at {operation.operation}"
