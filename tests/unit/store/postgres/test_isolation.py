"""What a commit reads after it has waited for a lock is what stands there by then, however the server begins transactions by default."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from outlast.app import SystemClock
from outlast.store.change import Guard, PutControl, Refused
from outlast.store.postgres.look import lock_number
from outlast.store.postgres.setting import read_setting
from outlast.store.postgres.store import open_postgres
from outlast.testing.conformance import Bench
from outlast.testing.conformance.permit import intending, permitting

LEVELS = ["read committed", "repeatable read", "serializable"]
WAITS = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("pooler", ["", "pooler=transaction"])
def test_role_that_is_revoked_while_an_intent_waits(
    postgres_url: str, level: str, pooler: str
) -> None:
    """The intent is refused: it does not see the roles as they were when it began to wait."""
    with psycopg.connect(postgres_url, autocommit=True) as other:
        name = other.info.dbname
        other.execute(
            f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'".encode()
        )
        asyncio.run(_revoke(f"{postgres_url}&{pooler}" if pooler else postgres_url, other))


async def _revoke(url: str, other: psycopg.Connection) -> None:
    clock = SystemClock()
    store = await open_postgres(read_setting(url), clock=clock)
    try:
        bench = Bench(store, clock)  # type: ignore[arg-type]
        head = await bench.owned()
        await bench.apply(PutControl("default", "roles", 0, b"{}"))
        permit = permitting(bench, authority=(Guard("default", "roles", 1),))
        with other.transaction():
            number = lock_number("outlast", "default", "roles")
            other.execute("SELECT pg_advisory_xact_lock(%s)", (number,))
            intent = asyncio.create_task(bench.one(intending(head, permit)))
            while not other.execute(WAITS).fetchall():
                await asyncio.sleep(0.01)
            other.execute("UPDATE outlast.control SET version = 2 WHERE name = 'roles'")
        assert await intent == Refused("unauthorised", "roles")
    finally:
        await store.close()
