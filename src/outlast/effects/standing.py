"""How each open operation of a run stands, read from what is stored: for those who look at a run from outside.

What leaves no trace is not here: a step under its first attempt, a timer, a wait for a message.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from outlast.journal.entry import (
    EffectCleared,
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    Entry,
)
from outlast.journal.failure import Failure
from outlast.store.change import OperationPut

State: TypeAlias = Literal["retrying", "intended", "in doubt"]


class Standing(msgspec.Struct, frozen=True):
    """One open step or effect.

    Args:
        kind: `step` or `effect`.
        state: `retrying` after a recorded failure, `intended` without an outcome yet, or `in doubt`.
        since: When it came into that state; None for a step, whose row has no time.
        failures: Attempts recorded as failed.
        due_at: When the next attempt may begin.
        failure: The last one, as `type: message`.
        key: The effect's idempotency key.
        arguments: The effect's, by parameter name.
        why: What is known of an effect in doubt.
    """

    operation: str
    kind: str
    name: str
    state: State
    since: datetime | None = None
    failures: int = 0
    due_at: datetime | None = None
    failure: str = ""
    key: str = ""
    arguments: Any = None
    why: str = ""


def standings(
    entries: Iterable[tuple[Entry, datetime]], rows: Iterable[OperationPut]
) -> list[Standing]:
    """Return the open operations of a run, in the order in which they became so.

    Args:
        entries: The journal, each entry with its time.
        rows: The run's open-operation rows.
    """
    found: dict[str, Standing] = {}
    for entry, at in entries:
        match entry:
            case EffectIntended():
                found[entry.operation] = Standing(
                    operation=entry.operation,
                    kind="effect",
                    name=entry.name,
                    state="intended",
                    since=at,
                    key=entry.key,
                    arguments=msgspec.json.decode(entry.effective),
                )
            case EffectInDoubt():
                _change(found, entry.operation, state="in doubt", since=at, why=entry.why)
            case EffectCleared():
                _change(found, entry.operation, state="intended", since=at, why="")
            case EffectCompleted() | EffectFailed():
                found.pop(entry.operation, None)
            case _:
                pass
    for row in rows:
        _add_row(found, row)
    return list(found.values())


def _change(found: dict[str, Standing], operation: str, **fields: Any) -> None:
    if operation in found:
        found[operation] = msgspec.structs.replace(found[operation], **fields)


def _add_row(found: dict[str, Standing], row: OperationPut) -> None:
    known = found.get(row.operation)
    if known is None:
        known = Standing(operation=row.operation, kind=row.kind, name=row.name, state="retrying")
    found[row.operation] = msgspec.structs.replace(
        known,
        state="retrying" if known.state == "intended" and row.failures else known.state,
        failures=row.failures,
        due_at=row.due_at,
        failure=_failure(row.detail),
    )


def _failure(detail: bytes) -> str:
    try:
        failure = msgspec.json.decode(detail, type=Failure)
    except msgspec.MsgspecError:
        return ""
    return f"{failure.type}: {failure.message}"
