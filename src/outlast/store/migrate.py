"""Numbered SQL files that bring a store to the schema this version knows, each applied once, forward only.

A file is named `0001_pre_initial.sql`: number, phase, subject. `pre` files run before new code is deployed and fit the old
code too; `post` files run after the last old process has ended. What was applied is recorded with its checksum: a changed file
or a file that this version does not know stops everything before a row is read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.resources import files
from typing import Protocol

from msgspec import Struct

from outlast.errors import StoreCorruptError, StoreUnavailableError, StoreVersionError

PHASES = ("pre", "post")
_NAME = re.compile(r"(\d{4})_(pre|post)_([a-z0-9_]+)\.sql")


class Migration(Struct, frozen=True):
    """One file.

    Args:
        number: Its place in the order, from 1 without gaps.
        phase: `pre` or `post`.
        checksum: SHA-256 of the file's text, in hex.
    """

    number: int
    phase: str
    subject: str
    sql: str
    checksum: str


class MigrationTarget(Protocol):
    """A store's schema, as the runner sees it. Its methods run in one exclusive transaction."""

    def exclusively(self) -> AbstractContextManager[None]:
        """Hold every other runner out; commit at the end, roll back on an error."""
        ...

    def applied(self) -> Mapping[int, str]:
        """Return the checksum of each applied migration by its number; empty for an empty store."""
        ...

    def apply(self, migration: Migration) -> None:
        """Run the migration and record it."""
        ...


def read_migrations(package: str) -> tuple[Migration, ...]:
    """Return the migrations in the folder `migrations` of `package`, in order.

    Raises:
        ValueError: A file is misnamed, or a number is missing or taken twice.
    """
    found: list[Migration] = []
    for file in files(package).joinpath("migrations").iterdir():
        if not file.name.endswith(".sql"):
            continue
        match = _NAME.fullmatch(file.name)
        if match is None:
            raise ValueError(f"{file.name} is not named like 0001_pre_initial.sql")
        sql = file.read_text(encoding="utf-8")
        checksum = hashlib.sha256(sql.encode()).hexdigest()
        found.append(Migration(int(match[1]), match[2], match[3], sql, checksum))
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"the migrations of {package} are not numbered from 1 without gaps")
    return tuple(found)


def plan(
    migrations: Sequence[Migration],
    applied: Mapping[int, str],
    where: str,
    phases: Sequence[str] = PHASES,
) -> list[Migration]:
    """Return what is still to be applied to a store.

    Args:
        where: The store, for errors.
        phases: Which phases to bring up to date.

    Raises:
        StoreVersionError: The store has a migration that this version does not know.
        StoreCorruptError: An applied migration differs from the file of the same number.
    """
    known = {migration.number: migration for migration in migrations}
    newer = sorted(number for number in applied if number not in known)
    if newer:
        raise StoreVersionError(
            f"{where} was written by a newer version of Outlast: it has migration {newer[-1]}, this version knows {len(known)}",
            hint="upgrade Outlast here; nothing was read or changed",
        )
    for number, checksum in sorted(applied.items()):
        if known[number].checksum != checksum:
            raise StoreCorruptError(
                f"{where} was migrated with another text of {number:04} ({known[number].subject})",
                hint="install the release that wrote it; applied migrations are never edited",
            )
    return [
        migration
        for migration in migrations
        if migration.number not in applied and migration.phase in phases
    ]


def migrate(
    target: MigrationTarget,
    migrations: Sequence[Migration],
    where: str,
    *,
    check_only: bool = False,
    phases: Sequence[str] = PHASES,
    before: Callable[[Migration], None] = lambda _: None,
) -> list[Migration]:
    """Bring `target` up to date and return what was applied. Safe to be run by many processes at once.

    Args:
        check_only: Change nothing; fail when something is missing.
        before: Told of each migration that is about to run.

    Raises:
        StoreUnavailableError: `check_only`, and migrations are missing.
        StoreVersionError: The store is newer than this version.
        StoreCorruptError: An applied migration has another checksum.
    """
    pending = plan(migrations, target.applied(), where, phases)
    if not pending:
        return []
    if check_only:
        names = ", ".join(
            f"{migration.number:04}_{migration.phase}_{migration.subject}" for migration in pending
        )
        raise StoreUnavailableError(
            f"{where} lacks migrations: {names}",
            hint="whoever opens the store without check_only brings it up to date",
        )
    with target.exclusively():
        # Another process may have been faster: what is pending is asked again under the lock.
        pending = plan(migrations, target.applied(), where, phases)
        for migration in pending:
            before(migration)
            target.apply(migration)
    return pending
