"""Who is in the way of a migration: it waits for locks, but not for ever, and says who holds them.

A table that somebody holds is asked for again a few times, with a pause between: everybody else queues behind whoever waits for it. Another
migration is waited for as long as it is at work. One that stands still with its lock, as after a crash, is named at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct
from psycopg import errors

from outlast.errors import StoreUnavailableError
from outlast.store.postgres.look import migration_lock
from outlast.store.postgres.session import Session
from outlast.store.postgres.setting import PostgresSetting

logger = logging.getLogger("outlast.store")

T = TypeVar("T")

LOCK_WAIT = "10s"
"""So long any lock is waited for at a time."""
_TRIES = 3
_HOLDERS = """
SELECT one.pid, one.usename::text, one.application_name, coalesce(host(one.client_addr), 'this machine'),
    coalesce(one.state, 'unknown'), extract(epoch FROM clock_timestamp() - one.xact_start)::bigint,
    bool_or(held.locktype = 'advisory')
FROM pg_locks AS held JOIN pg_stat_activity AS one ON one.pid = held.pid
WHERE held.granted AND held.pid <> pg_backend_pid() AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND (
    (held.locktype = 'advisory' AND held.objsubid = 1 AND (held.classid::bigint << 32 | held.objid::bigint) = %b)
    OR (held.locktype = 'relation' AND held.relation IN (
        SELECT class.oid FROM pg_class AS class JOIN pg_namespace AS space ON space.oid = class.relnamespace WHERE space.nspname = %b
    ))
) GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 7 DESC, 6 DESC NULLS LAST, 1 LIMIT 3
"""


class Holder(Struct, frozen=True):
    """A session that holds the lock of migrations, or a table of the store.

    Args:
        state: What it does now: `active`, `idle in transaction`, or `unknown` to a user who may not see it.
        seconds: Since its transaction began.
    """

    pid: int
    user: str | None
    application: str | None
    host: str
    state: str
    seconds: int | None
    is_migrating: bool

    def __str__(self) -> str:
        """Say who it is, and not what it has asked."""
        since = "" if self.seconds is None else f" for {self.seconds} s"
        what = "the lock of migrations" if self.is_migrating else "a table"
        return f"process {self.pid} of the server ({self.user or 'unknown'}, {self.application or 'no name'}, from {self.host}), which is {self.state}{since} and holds {what}"


def waiting(session: Session, setting: PostgresSetting, migrate: Callable[[], T]) -> T:
    """Return what a migration returns, tried again while others hold what it needs.

    Raises:
        StoreUnavailableError: Somebody did not let go of it; nothing was changed.
    """
    tries = 0
    while True:
        try:
            return migrate()
        except errors.LockNotAvailable as error:
            holders = _holders(session)
            first = holders[0] if holders else None
            if first is None or not first.is_migrating or first.state != "active":
                tries += 1
            is_stuck = first is not None and first.is_migrating and first.state.startswith("idle")
            told = "; ".join(map(str, holders)) or "a session that has ended meanwhile"
            if is_stuck or tries >= _TRIES:
                raise StoreUnavailableError(
                    f"{setting.place} could not be migrated: {told}; nothing was changed",
                    hint="let it finish, or end it: SELECT pg_terminate_backend("
                    f"{first.pid if first is not None else 'pid'}); then migrate again",
                ) from error
            logger.warning("%s: a migration waits for %s", setting.place, told)


def _holders(session: Session) -> list[Holder]:
    schema = session.statements.schema
    return [Holder(*row) for row in session.rows(_HOLDERS, (migration_lock(schema), schema))]
