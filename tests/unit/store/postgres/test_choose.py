"""A claim locks what it takes, and little else; what others have locked keeps nobody from the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import psycopg
import pytest

from outlast.app import SystemClock
from outlast.store.change import WorkerId
from outlast.store.postgres.setting import read_setting
from outlast.store.postgres.store import PostgresStore, open_postgres
from outlast.testing.conformance import Bench, ManualClock

WORKFLOWS = ("one", "three", "two")
QUEUES = frozenset({"left", "right"})
NEW_TASKS = """
INSERT INTO outlast.task (tenant, run_id, operation, generation, attempt, queue, name, worker, due, since, set_at, taken, lapses, held, arguments, progress)
SELECT 'default', 'run', queue || number, 1, 1, queue, 'step', NULL, number, number, number, 0, 0, 0, '', ''
FROM unnest(ARRAY['left', 'right']) AS queue, generate_series(1, 5) AS number
"""
LOCKED = "SELECT {column} FROM outlast.{table} WHERE xmax::text <> '0' AND {holder} IS NULL"
"""Which transaction has locked a row, and not written it, stands there after its end."""


async def runs(store: PostgresStore, worker: WorkerId, limit: int) -> list[str]:
    """Claim runs of three workflows."""
    claim = await store.claim(worker, frozenset(WORKFLOWS), limit)
    return [one.head.run.run_id for one in claim.runs]


async def tasks(store: PostgresStore, worker: WorkerId, limit: int) -> list[str]:
    """Claim tasks of two queues."""
    claim = await store.claim_tasks(worker, QUEUES, frozenset({"step"}), limit=limit)
    return [one.row.key.operation for one in claim.tasks]


Claiming = Callable[[PostgresStore, WorkerId, int], Awaitable[list[str]]]
KINDS: list[tuple[str, Claiming, str, list[str]]] = [
    ("run", runs, "run_id", ["one0", "three0", "two0", "one1", "three1", "two1", "one2"]),
    ("task", tasks, "operation", ["left1", "right1", "left2", "right2", "left3"]),
]
of_each_kind = pytest.mark.parametrize(
    ("table", "claim", "column", "order"), KINDS, ids=[kind[0] for kind in KINDS]
)


def on(url: str, act: Callable[[PostgresStore, WorkerId, psycopg.Connection], object]) -> None:
    """Do something with a store that holds runs and tasks which are due, as they stand in `KINDS`."""

    async def main() -> None:
        store = await open_postgres(read_setting(url), clock=SystemClock())
        bench = Bench(store, ManualClock())
        worker = await bench.worker()
        for number in range(5):
            for name in WORKFLOWS:
                await bench.start(f"{name}{number}", workflow=name)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(NEW_TASKS)
            connection.execute(
                "UPDATE outlast.run SET due = right(run_id, 1)::bigint, due_set_at = 0"
            )
            await act(store, worker, connection)  # type: ignore[misc]
        await store.close()

    asyncio.run(main())


def locked(looking: psycopg.Connection, table: str, column: str) -> set[str]:
    """Return which rows somebody has locked, and nobody has taken."""
    holder = "owner" if table == "run" else "worker"
    found = looking.execute(LOCKED.format(table=table, column=column, holder=holder).encode())
    return {row[0] for row in found}


@of_each_kind
def test_a_claim_locks_what_it_takes(
    postgres_url: str, table: str, claim: Claiming, column: str, order: list[str]
) -> None:
    """The oldest of all places, and none that it leaves."""

    async def act(store: PostgresStore, worker: WorkerId, looking: psycopg.Connection) -> None:
        assert sorted(await claim(store, worker, 2)) == sorted(order[:2])
        assert locked(looking, table, column) == set()

    on(postgres_url, act)


@of_each_kind
def test_what_others_have_locked_is_passed_over(
    postgres_url: str, table: str, claim: Claiming, column: str, order: list[str]
) -> None:
    """Somebody takes nearly all that would be chosen first: as many others are taken, the oldest of them first."""
    busy = len(order) - 2

    async def act(store: PostgresStore, worker: WorkerId, looking: psycopg.Connection) -> None:
        with psycopg.connect(postgres_url) as other:
            lock = f"SELECT 1 FROM outlast.{table} WHERE {column} = ANY(%s) FOR UPDATE"
            other.execute(lock.encode(), (order[:busy],))
            assert sorted(await claim(store, worker, 2)) == sorted(order[busy:])
            assert locked(looking, table, column) == set(order[:busy])
        assert set(order[:busy]) < {*await claim(store, worker, 100)}

    on(postgres_url, act)
