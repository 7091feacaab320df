"""What whoever owns a store does to it, apart from all work: migrations and rights. On a connection of its own, which is closed after."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence

import psycopg

from outlast.store.migrate import Migration
from outlast.store.postgres.failure import failure_of
from outlast.store.postgres.role import grant
from outlast.store.postgres.schema import bring_up_to_date, check_server, lacking
from outlast.store.postgres.session import Session
from outlast.store.postgres.setting import PostgresSetting


@contextlib.contextmanager
def administering(setting: PostgresSetting) -> Generator[Session, None, None]:
    """Give a connection to a server that a store may be on.

    Raises:
        StoreError: What the server has refused.
    """
    session = Session(setting)
    try:
        check_server(session, setting)
        yield session
    except psycopg.Error as error:
        raise failure_of(error, setting.place) from error
    finally:
        session.close()


def upgrade(
    setting: PostgresSetting, *, phases: Sequence[str], check: bool = False, partitions: int = 0
) -> list[Migration]:
    """Apply what migrations are missing, and return them.

    Args:
        check: Only return them.
        partitions: Of each table of runs, where the store is new.

    Raises:
        StoreError: As for `bring_up_to_date`.
    """
    with administering(setting) as session:
        if check:
            return lacking(session, setting, phases)
        return bring_up_to_date(session, setting, phases=phases, partitions=partitions)


def give_rights(setting: PostgresSetting, role: str, *, read_only: bool = False) -> list[str]:
    """Give a role what it needs to work on the store; return the statements.

    Raises:
        StoreError: There is no such role, it owns the store, or this user may not do that.
    """
    with administering(setting) as session:
        return grant(session, setting, role, read_only=read_only)
