"""Numbered SQL files that bring a store to the schema this version knows, each applied once, forward only.

A file is named `0001_pre_initial.sql`: number, phase, subject. `pre` files run before new code is deployed; `post` files run after the
last old process has ended. What was applied is recorded with its phase and checksum.

Invariants:
    A `pre` file fits all code that knows every `post` file before it, so that old code works on with a store that has `pre` files which it
    does not know, and refuses one that has such a `post` file. A `pre` file that does not fit has a `post` file before it, an empty one too.
    Files are applied in the order of their numbers, whatever the phase: what a store has is always all up to one of them.
    A changed file stops everything before a row is read.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from msgspec import Struct

from outlast.errors import StoreCorruptError, StoreUnavailableError, StoreVersionError

logger = logging.getLogger("outlast.store")

PHASES = ("pre", "post")
AT_OPENING = ("pre",)
"""What whoever opens a store applies to it: old processes may still live. An empty store gets everything."""
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

    @property
    def title(self) -> str:
        """Its file's name, as people are told of it."""
        return _title(self.number, self.phase, self.subject)


class AppliedMigration(Struct, frozen=True):
    """What a store says of a migration that it has."""

    phase: str
    subject: str
    checksum: str


class MigrationTarget(Protocol):
    """A store's schema, as the runner sees it. Its methods run in one exclusive transaction."""

    def exclusively(self) -> AbstractContextManager[None]:
        """Hold every other runner out; commit at the end, roll back on an error."""
        ...

    def applied(self) -> Mapping[int, AppliedMigration]:
        """Return each applied migration by its number; empty for an empty store."""
        ...

    def apply(self, migration: Migration) -> None:
        """Run the migration and record it."""
        ...


def read_migrations(package: str) -> tuple[Migration, ...]:
    """Return the migrations in the folder `migrations` of `package`, in order.

    Raises:
        ValueError: A file is misnamed, or a number is missing or taken twice.
    """
    from importlib.resources import files  # dear to load, and needed only where a store is opened

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
    applied: Mapping[int, AppliedMigration],
    where: str,
    phases: Sequence[str] = PHASES,
) -> list[Migration]:
    """Return what is still to be applied to a store.

    Args:
        where: The store, for errors.
        phases: Which phases to bring up to date; an empty store gets all.

    Raises:
        StoreVersionError: The store has a `post` migration that this version does not know.
        StoreCorruptError: An applied migration differs from the file of the same number, or one before it is missing.
        StoreUnavailableError: One that is to be applied comes after one that is not.
    """
    check_known(migrations, applied, where)
    pending = [migration for migration in migrations if migration.number not in applied]
    if pending and pending[0].number < max(applied, default=0):
        raise StoreCorruptError(
            f"{where} lacks the migration {pending[0].title}, and has later ones",
            hint="restore a backup: what a store has is all up to one number",
        )
    if not applied:
        return pending
    chosen = [migration for migration in pending if migration.phase in phases]
    left = [migration for migration in pending if migration.phase not in phases]
    if chosen and left and left[0].number < chosen[-1].number:
        raise StoreUnavailableError(
            f"{where}: {chosen[-1].title} is to be applied after {left[0].title}, which is not applied yet",
            hint=_BEFORE[left[0].phase],
        )
    return chosen


_BEFORE = {
    "pre": "`outlast migrate --phase pre` first, then deploy",
    "post": "once no process of the former version is left, `outlast migrate` applies both; or deploy the version between first",
}


def check_known(
    migrations: Sequence[Migration], applied: Mapping[int, AppliedMigration], where: str
) -> None:
    """Refuse a store that this version must not touch.

    Raises:
        StoreVersionError: It has a `post` migration that this version does not know.
        StoreCorruptError: An applied migration differs from the file of the same number.
    """
    known = {migration.number: migration for migration in migrations}
    for number, one in sorted(applied.items()):
        if number in known and known[number].checksum != one.checksum:
            raise StoreCorruptError(
                f"{where} was migrated with another text of {number:04} ({known[number].subject})",
                hint="install the release that wrote it; applied migrations are never edited",
            )
    newer = [number for number in unknown(migrations, applied) if applied[number].phase != "pre"]
    if newer:
        raise StoreVersionError(
            f"{where} was written by a newer version of Outlast: it has migration {newer[-1]}, this version knows {len(known)}",
            hint="upgrade Outlast here; nothing was read or changed",
        )


def unknown(migrations: Sequence[Migration], applied: Mapping[int, AppliedMigration]) -> list[int]:
    """Return the numbers of what a newer version has applied, in order."""
    known = {migration.number for migration in migrations}
    return sorted(number for number in applied if number not in known)


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
        StoreUnavailableError: `check_only`, and migrations are missing; or the order forbids it.
        StoreVersionError: The store is newer than this version.
        StoreCorruptError: An applied migration has another checksum.
    """
    applied = target.applied()
    pending = plan(migrations, applied, where, phases)
    if newer := unknown(migrations, applied):
        titles = ", ".join(
            _title(number, applied[number].phase, applied[number].subject) for number in newer
        )
        logger.info("%s was prepared for a newer version of Outlast (%s)", where, titles)
    if not pending:
        return []
    if check_only:
        raise missing(where, pending)
    with target.exclusively():
        # Another process may have been faster: what is pending is asked again under the lock.
        pending = plan(migrations, target.applied(), where, phases)
        for migration in pending:
            before(migration)
            target.apply(migration)
    return pending


def missing(where: str, pending: Sequence[Migration], why: str = "") -> StoreUnavailableError:
    """Return the error of who needs migrations and may not apply them."""
    titles = ", ".join(migration.title for migration in pending)
    return StoreUnavailableError(
        f"{where} lacks migrations: {titles}{why}",
        hint="run `outlast migrate` as the user who owns the store",
    )


def _title(number: int, phase: str, subject: str) -> str:
    return f"{number:04}_{phase}_{subject}"
