"""Migrating a file, apart from all work on it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import apsw

from outlast.store.migrate import Migration, plan, read_migrations
from outlast.store.sqlite.connection import (
    PACKAGE,
    SQLiteOptions,
    absolute,
    applied_to,
    check_owner,
    check_place,
    open_reader,
    open_writer,
)
from outlast.store.sqlite.failure import failure_of


def upgrade_file(file: str, *, phases: Sequence[str], check: bool = False) -> list[Migration]:
    """Apply what migrations a file lacks, and return them; a file that is not there is made.

    Args:
        check: Only return them, and make nothing.

    Raises:
        StoreError: As for `open_sqlite`.
    """
    options, path = SQLiteOptions(), absolute(file)
    check_place(path, options, create=not check)
    applied: list[Migration] = []
    try:
        if not check:
            open_writer(path, options, phases=phases, before=applied.append).close()
            return applied
        with contextlib.closing(open_reader(path, options)) as database:
            check_owner(database, path)
            return plan(read_migrations(PACKAGE), applied_to(database), path, phases)
    except apsw.Error as error:
        raise failure_of(error, path) from error
