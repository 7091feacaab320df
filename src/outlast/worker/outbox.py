"""What the pilot writes about other runs: what it asks of them, and what it is told came of it."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Raw, Struct

from outlast.effects.intent import Resolution
from outlast.journal.entry import (
    ChildRefused,
    ChildRequested,
    ChildStarted,
    Durability,
    MessageAnswered,
    MessageSent,
    OperationId,
    RunEnded,
    Started,
    WatchRequested,
)
from outlast.replay.command import SendMessage, StartChild, WatchRun
from outlast.replay.machine import Machine
from outlast.replay.operation import ChildOperation, SendOperation, WatchOperation
from outlast.store.change import (
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
        effects: `refuse` of a child of a fork that refuses effects.
        timeout_seconds: How long it may take; None without limit.
        durability: Of the child, as its workflow says where the parent runs.
    """

    arguments: Raw
    tells_start: bool = False
    effects: Literal["refuse", ""] = ""
    timeout_seconds: float | None = None
    durability: Durability = "sync"


def requesting(
    command: StartChild | SendMessage | WatchRun, head: RunHead, started: Started
) -> Proposal:
    """Return what is recorded, and put into the outbox, when something is asked of another run.

    Args:
        head: Of the run that asks.
        started: How it began.
    """
    operation, target = command.operation, RunKey(head.run.tenant, command.run_id)
    match command:
        case StartChild():
            entry = ChildRequested(
                operation,
                command.name,
                command.run_id,
                Raw(command.arguments),
                command.parent_close,
            )
            row = OperationPut(operation, f"child_{command.parent_close}", command.run_id)
            effects = "refuse" if started.effects == "refuse" else ""
            body = ChildBody(
                Raw(command.arguments),
                command.tells_start,
                effects,
                command.timeout_seconds,
                command.durability,
            )
            item = OutboxItem(
                target,
                OutboxKind.START,
                name=command.name,
                sender=started.principal,
                body=msgspec.json.encode(body),
                generation=head.generation,
                operation=operation,
                origin=_origin(head, operation),
            )
            return Proposal(Rank.INTENT, entry, guard=operation, row=row, outbox=item)
        case SendMessage():
            sent = MessageSent(
                operation, command.name, command.run_id, command.kind, Raw(command.value)
            )
            item = OutboxItem(
                target,
                OutboxKind(command.kind),
                message_id=f"run/{_origin(head, operation)}",
                name=command.name,
                sender=head.run.run_id,
                body=command.value,
                generation=head.generation,
                operation=operation,
                origin=_origin(head, command.child) if command.child else "",
            )
            return Proposal(Rank.INTENT, sent, guard=operation, outbox=item)
        case WatchRun():
            watched = WatchRequested(operation, command.run_id)
            row = OperationPut(operation, WATCHED, command.run_id)
            item = OutboxItem(
                target, OutboxKind.WATCH, generation=head.generation, operation=operation
            )
            return Proposal(Rank.INTENT, watched, guard=operation, row=row, outbox=item)


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
