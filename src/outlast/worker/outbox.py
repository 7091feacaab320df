"""What the pilot writes about other runs: what it asks of them, and what it is told came of it."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Raw, Struct

from outlast.effects.intent import Resolution
from outlast.effects.kin import marker, message_id
from outlast.journal.entry import (
    ChildRefused,
    ChildRequested,
    ChildStarted,
    Durability,
    EffectPolicy,
    MessageAnswered,
    MessageSent,
    OperationId,
    Parent,
    RunEnded,
    Started,
    WatchRequested,
)
from outlast.replay.command import SendMessage, StartChild, WatchRun
from outlast.replay.machine import Machine
from outlast.replay.operation import ChildOperation, SendOperation, WatchOperation
from outlast.store.change import (
    CHILD_ABANDON,
    WATCHED,
    OperationDrop,
    OperationPut,
    OutboxItem,
    OutboxKind,
    RunHead,
    RunKey,
    Status,
    origin_of,
)
from outlast.worker.proposal import Proposal, Rank

RELAYED = frozenset({"started", "refused", "ended", "sent", "unsent"})
"""Outcomes that only the relay tells."""

_FAILED = (Status.FAILED, Status.CANCELLED)


class ChildBody(Struct, frozen=True, omit_defaults=True):
    """The body of an outbox item of kind `start`.

    Args:
        arguments: JSON object of the child's arguments by parameter name.
        tells_start: Whether its parent waits to be told that it exists.
        effects: Of a child of a fork: what becomes of its effects.
        keys: The namespace of the keys that the origin's child would have: its own under `same_key`.
        is_last: The origin had ended: it will have no such child.
        parent: The operation that its row names, where another one than the sender's: it may exist, and is watched then.
        timeout_seconds: How long it may take; None without limit.
        durability: Of the child, as its workflow says where the parent runs.
        requesters: Of a child of a fork: who started its origin.
    """

    arguments: Raw
    tells_start: bool = False
    effects: EffectPolicy | Literal[""] = ""
    keys: str = ""
    is_last: bool = False
    parent: Parent | None = None
    timeout_seconds: float | None = None
    durability: Durability = "sync"
    requesters: tuple[str, ...] = ()


def asking_for(
    command: StartChild,
    head: RunHead,
    started: Started,
    body: ChildBody,
    *,
    as_run: str = "",
    is_close: bool = True,
) -> Proposal:
    """Return what is recorded, and put into the outbox, when a child is asked for.

    Args:
        head: Of the run that asks.
        started: How it began.
        as_run: The run that stands for the child, where that is another one than the code names.
        is_close: Whether the end of the run means to the child what the workflow says; else it means nothing.
    """
    operation, run_id = command.operation, as_run or command.run_id
    entry = ChildRequested(
        operation,
        command.name,
        command.run_id,
        Raw(command.arguments),
        command.parent_close,
        command.own_id,
        command.number,
        as_run,
    )
    kind = f"child_{command.parent_close}" if is_close else CHILD_ABANDON
    item = OutboxItem(
        RunKey(head.run.tenant, run_id),
        OutboxKind.START,
        name=command.name,
        sender=started.principal,
        body=msgspec.json.encode(body),
        generation=head.generation,
        operation=operation,
        origin=_origin(head, operation) if body.parent is None else marker(body.parent),
    )
    row = OperationPut(operation, kind, run_id)
    return Proposal(Rank.INTENT, entry, guard=operation, row=row, outbox=item)


def sending(
    command: SendMessage,
    head: RunHead,
    *,
    target: str = "",
    origin: str = "",
    as_id: str = "",
) -> Proposal:
    """Return what is recorded, and put into the outbox, when a message is sent to another run.

    Args:
        head: Of the run that sends.
        target: The run that is meant, where it is another one than the code names.
        origin: The operation that its row names, then.
        as_id: By which the other run may know it already.
    """
    operation, run_id = command.operation, target or command.run_id
    if command.child and not origin:
        origin = _origin(head, command.child)
    sent = MessageSent(
        operation,
        command.name,
        run_id,
        command.kind,
        Raw(command.value),
        command.number,
        command.child,
        as_id,
    )
    sender = Parent(head.run.run_id, head.generation, operation)
    item = OutboxItem(
        RunKey(head.run.tenant, run_id),
        OutboxKind(command.kind),
        message_id=as_id or message_id(sender, sent),
        name=command.name,
        sender=head.run.run_id,
        body=command.value,
        generation=head.generation,
        operation=operation,
        origin=origin,
    )
    return Proposal(Rank.INTENT, sent, guard=operation, outbox=item)


def watching(command: WatchRun, head: RunHead) -> Proposal:
    """Return what is recorded, and put into the outbox, when the end of another run is waited for."""
    operation, target = command.operation, RunKey(head.run.tenant, command.run_id)
    item = OutboxItem(target, OutboxKind.WATCH, generation=head.generation, operation=operation)
    row = OperationPut(operation, WATCHED, command.run_id)
    entry = WatchRequested(operation, command.run_id)
    return Proposal(Rank.INTENT, entry, guard=operation, row=row, outbox=item)


def giving_up(row: OperationPut, head: RunHead) -> Proposal:
    """Return what is written when nobody waits for an open operation any more: its row goes, and a watch is taken back."""
    item = None
    if row.kind == WATCHED:
        target = RunKey(head.run.tenant, row.name)
        item = OutboxItem(
            target, OutboxKind.UNWATCH, generation=head.generation, operation=row.operation
        )
    return Proposal(Rank.ROW, row=OperationDrop(row.operation), outbox=item)


def answered(
    resolution: Resolution, machine: Machine, generation: int
) -> ChildStarted | ChildRefused | RunEnded | MessageAnswered | None:
    """Return the entry that says what came of something that was asked of another run; None when nobody waits for it any more.

    Raises:
        ValueError: It says nothing that could be.
    """
    if resolution.generation != generation:
        return None
    operation, failure = OperationId(resolution.operation), resolution.failure
    if resolution.outcome in {"refused", "unsent"} and failure is None:
        raise ValueError(f"{resolution.outcome}, and no failure says why")
    match machine.find(operation), resolution.outcome:
        case ChildOperation(is_started=False), "started":
            return ChildStarted(operation)
        case ChildOperation(), "refused" if failure is not None:
            return ChildRefused(operation, failure)
        case (ChildOperation() | WatchOperation()) as found, "ended":
            is_child = isinstance(found, ChildOperation)
            return _end(resolution, found.run_id if is_child else found.request.run_id)
        case SendOperation(), "sent":
            return MessageAnswered(operation)
        case ((SendOperation() | WatchOperation()), "unsent"):
            return MessageAnswered(operation, failure)
        case _:
            return None


def _end(resolution: Resolution, run_id: str) -> RunEnded:
    status = Status(resolution.status)
    if not status.closed or (status in _FAILED and resolution.failure is None):
        raise ValueError(f"a run cannot have ended as {status} without a failure")
    return RunEnded(
        operation=OperationId(resolution.operation),
        run_id=run_id,
        status=status.value,
        value=resolution.value,
        failure=resolution.failure,
        reason=resolution.reason,
    )


def _origin(head: RunHead, operation: str) -> str:
    return origin_of(head.run.run_id, head.generation, operation)
