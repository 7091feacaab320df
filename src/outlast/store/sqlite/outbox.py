# ruff: noqa: S608 - only constants of this package are joined to statements; every value is bound
"""What runs have to tell each other, and who is to be told of an end: written within somebody else's change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from outlast.store.change import (
    OTHER_RUN,
    DropWatch,
    OutboxItem,
    PutWatch,
    RunKey,
    StartRun,
    Status,
    Watch,
)
from outlast.store.farewell import to_children, to_watchers
from outlast.store.row import OPERATION, OUTBOX, operation_of, outbox_values
from outlast.store.sqlite.damage import RUN, decoded
from outlast.store.sqlite.database import Row
from outlast.store.sqlite.scope import Writing

T = TypeVar("T")

_NUMBER = """
UPDATE run SET outbox_number = outbox_number + ? WHERE tenant = ? AND run_id = ? RETURNING outbox_number
"""
_ADD = f"INSERT INTO outbox ({OUTBOX}, at) VALUES ({'?, ' * 15}?)"
_CLEAR = "DELETE FROM outbox WHERE tenant = ? AND run_id = ? AND number = ?"
_KINDS = ", ".join(f"'{kind}'" for kind in sorted(OTHER_RUN))
_OTHER_RUNS = f"""
SELECT {OPERATION}, tenant, run_id FROM operation
WHERE tenant = ? AND run_id = ? AND kind IN ({_KINDS}) ORDER BY operation
"""
_END = "SELECT status, reason FROM run WHERE tenant = ? AND run_id = ?"
_WATCH = "watcher_tenant, watcher_run_id, watcher_generation, operation"
_WATCHES = (
    f"SELECT {_WATCH}, tenant, run_id FROM watch WHERE tenant = ? AND run_id = ? ORDER BY {_WATCH}"
)
_PUT_WATCH = f"INSERT OR IGNORE INTO watch (tenant, run_id, {_WATCH}) VALUES ({'?, ' * 5}?)"
_DROP_WATCH = """
DELETE FROM watch WHERE tenant = ? AND run_id = ? AND watcher_tenant = ? AND watcher_run_id = ?
    AND watcher_generation = ? AND operation = ?
"""
_UNTOLD = "another run is not told of the end of run %s"


def add(writing: Writing, key: tuple[str, str], items: Iterable[OutboxItem], at: int) -> bool:
    """Add items of a run, and give them their numbers; whether there were any."""
    found = list(items)
    if not found:
        return False
    last: int = writing.database.value(_NUMBER, (len(found), *key))
    first = last - len(found) + 1
    rows = [(*outbox_values(key, item, first + place), at) for place, item in enumerate(found)]
    writing.database.run_each(_ADD, rows)
    return True


def clear(writing: Writing, run: RunKey, numbers: Iterable[int]) -> None:
    """Remove items."""
    writing.database.run_each(_CLEAR, [(run.tenant, run.run_id, number) for number in numbers])


def leave_others(writing: Writing, key: tuple[str, str], generation: int, at: int) -> bool:
    """Put into the outbox what the end of a generation means to other runs; whether there was anything.

    A row that cannot be read is passed over: it must not keep a run from being ended.
    """
    rows = _read(writing, _OTHER_RUNS, key, operation_of)
    return add(writing, key, to_children(RunKey(*key), generation, rows), at)


def tell_watchers(writing: Writing, key: tuple[str, str], generation: int, at: int) -> bool:
    """Put into the outbox what tells who watches a run that it has ended, and forget them; whether there were any.

    Its row says by now how it has ended.
    """
    watches = _read(writing, _WATCHES, key, _watch_of)
    if not watches:
        return False
    status, reason = writing.database.row(_END, key) or ("", "")
    writing.database.run("DELETE FROM watch WHERE tenant = ? AND run_id = ?", key)
    return add(writing, key, to_watchers(generation, Status(status), reason, watches), at)


def put_watch(writing: Writing, change: PutWatch | StartRun, watch: Watch) -> None:
    """Let a watcher be told of the end of a run."""
    writing.database.run(_PUT_WATCH, _values(change.run, watch))


def drop_watch(writing: Writing, change: DropWatch) -> None:
    """Tell a watcher nothing more."""
    writing.database.run(_DROP_WATCH, _values(change.run, change.watch))


def _read(writing: Writing, sql: str, key: tuple[str, str], decode: Callable[[Row], T]) -> list[T]:
    found = decoded(writing.database, sql, key, lambda row: decode(row[:-2]), (RUN, _UNTOLD))
    return [one for one in found if one is not None]


def _watch_of(row: Row) -> Watch:
    return Watch(RunKey(row[0], row[1]), row[2], row[3])


def _values(run: RunKey, watch: Watch) -> Row:
    watcher = watch.watcher
    where = (run.tenant, run.run_id)
    return (*where, watcher.tenant, watcher.run_id, watch.generation, watch.operation)
