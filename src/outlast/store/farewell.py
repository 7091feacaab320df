"""What the end of a run means to other runs, as items of its outbox: one wording for every store.

A store calls these in the transaction that ends the run, owned or by `Terminate`, so they need plain fields only: no journal is read,
no payload opened.
"""

from __future__ import annotations

from collections.abc import Iterable

from outlast.store.change import (
    CHILD_CANCEL,
    CHILD_TERMINATE,
    OTHER_RUN,
    WATCHED,
    OperationPut,
    OutboxItem,
    OutboxKind,
    RunKey,
    Status,
    Watch,
    origin_of,
)

PARTED = "the run that started it has ended"
"""Why a child is asked to stop, or terminated."""

_KINDS = {
    CHILD_TERMINATE: OutboxKind.TERMINATE,
    CHILD_CANCEL: OutboxKind.CANCEL,
    WATCHED: OutboxKind.UNWATCH,
}


def to_children(run: RunKey, generation: int, rows: Iterable[OperationPut]) -> list[OutboxItem]:
    """Return what a run asks of those that it started or watched, when it no longer waits for them.

    Args:
        generation: That ends.
        rows: Its open operations, in order.
    """
    items: list[OutboxItem] = []
    for row in rows:
        kind = _KINDS.get(row.kind)
        if row.kind not in OTHER_RUN or kind is None:
            continue
        target = RunKey(run.tenant, row.name)
        origin = origin_of(run.run_id, generation, row.operation)
        if kind is OutboxKind.UNWATCH:
            item = OutboxItem(target, kind, generation=generation, operation=row.operation)
        else:
            item = OutboxItem(
                target,
                kind,
                message_id=f"close/{origin}",
                sender=run.run_id,
                generation=generation,
                origin=origin,
            )
        items.append(item)
    return items


def to_watchers(
    generation: int, status: Status, reason: str, watches: Iterable[Watch]
) -> list[OutboxItem]:
    """Return what tells the watchers of a run that it has ended.

    Args:
        generation: That ends.
        reason: Why; told of a terminated one, whose journal does not say it.
        watches: In order.
    """
    return [
        OutboxItem(
            watch.watcher,
            OutboxKind.ENDED,
            message_id=answer_id("end", watch.generation, watch.operation),
            name=status.value,
            generation=generation,
            operation=watch.operation,
            target_generation=watch.generation,
            reason=reason if status is Status.TERMINATED else "",
        )
        for watch in watches
    ]


def answer_id(word: str, generation: int, operation: str) -> str:
    """Return the id of the inbox item that tells an operation what came of it: whoever tells, and however often, it is one.

    Args:
        word: `start`, `end` or `sent`.
    """
    return f"{word}/{generation}~{operation}"
