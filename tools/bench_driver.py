"""What one transaction of the shape of `Store.commit()` costs, by driver and by how its statements travel.

    pip install --group test asyncpg
    python tools/bench_driver.py                    # the server's folder is on the disk of the temporary files
    python tools/bench_driver.py --folder /dev/shm  # in memory: a sync costs nothing

A batch of N runs: (a) their rows are locked in one order; (b) rows of two more tables are read; the client decides; (c) N entries of
200 bytes are inserted, the N rows are updated, and that is committed. Each list travels as an array (`unnest`). The ways:

    psycopg pipeline   psycopg 3, synchronous, prepared, pipeline mode: BEGIN with (a) and (b), then (c) with COMMIT. Two round trips
    … on a thread      the same, from a thread of its own that an event loop waits for, as a worker would
    psycopg plain      the same statements, one round trip each: seven
    asyncpg            seven round trips, on an event loop
    … function         everything is one call of a PL/pgSQL function, in either driver: one round trip, and it decides in the server

The ways take turns within one run, so that all meet the same load; figures are medians over the turns. CPU is that of the client's
process, per transaction: on a machine that the server shares, it is what a worker pays. A Unix socket's round trip is the shortest that
there is: over a network each one costs its latency more. A measurement to read, not a test.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import psycopg

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from postgres_server import PostgresServer

SIZES = (1, 10, 100, 500)
RUNS = 5000
PAYLOAD_BYTES = 200

SCHEMA = """
CREATE TABLE run (
    tenant text NOT NULL, id text NOT NULL, version bigint NOT NULL, epoch bigint NOT NULL,
    digest bytea NOT NULL, head bytea NOT NULL, PRIMARY KEY (tenant, id)
) WITH (fillfactor = 50);
CREATE TABLE entry (
    tenant text NOT NULL, run_id text NOT NULL, position bigint NOT NULL, body bytea NOT NULL,
    PRIMARY KEY (tenant, run_id, position)
);
CREATE TABLE operation (
    tenant text NOT NULL, run_id text NOT NULL, id text NOT NULL, body bytea NOT NULL,
    PRIMARY KEY (tenant, run_id, id)
);
CREATE TABLE control (name text PRIMARY KEY, version bigint NOT NULL);
INSERT INTO run SELECT 'default', 'run-' || n, 0, 1, decode(md5(n::text), 'hex'), decode(repeat(md5(n::text), 6), 'hex')
    FROM generate_series(0, {last}) AS n;
INSERT INTO operation SELECT tenant, id, 'r:1', head FROM run;
INSERT INTO control SELECT 'switch-' || n, n FROM generate_series(1, 20) AS n;

CREATE FUNCTION commit_batch(
    tenants text[], ids text[], names text[], versions bigint[], positions bigint[], bodies bytea[], digests bytea[], heads bytea[]
) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE fit boolean;
BEGIN
    SELECT bool_and(l.version = l.expected) INTO fit FROM (
        SELECT r.version, k.version AS expected FROM run r
        JOIN unnest(tenants, ids, versions) AS k (tenant, id, version) USING (tenant, id)
        ORDER BY r.tenant, r.id FOR UPDATE OF r
    ) AS l;
    PERFORM version FROM control WHERE name = ANY (names);
    PERFORM o.body FROM operation o JOIN unnest(tenants, ids) AS k (tenant, id) ON o.tenant = k.tenant AND o.run_id = k.id;
    IF NOT fit THEN RAISE EXCEPTION 'conflict'; END IF;
    INSERT INTO entry SELECT * FROM unnest(tenants, ids, positions, bodies);
    UPDATE run r SET version = r.version + 1, digest = k.digest, head = k.head
        FROM unnest(tenants, ids, digests, heads) AS k (tenant, id, digest, head)
        WHERE r.tenant = k.tenant AND r.id = k.id;
    RETURN QUERY SELECT unnest(ids);
END $$;
"""

LOCK = """
SELECT r.tenant, r.id, r.version, r.epoch, r.digest FROM run r
JOIN unnest({}::text[], {}::text[]) AS k (tenant, id) USING (tenant, id)
ORDER BY r.tenant, r.id FOR UPDATE OF r
"""
CONTROL = "SELECT name, version FROM control WHERE name = ANY ({}::text[])"
OPERATION = """
SELECT o.run_id, o.id, o.body FROM operation o
JOIN unnest({}::text[], {}::text[]) AS k (tenant, id) ON o.tenant = k.tenant AND o.run_id = k.id
"""
INSERT = "INSERT INTO entry SELECT * FROM unnest({}::text[], {}::text[], {}::bigint[], {}::bytea[])"
UPDATE = """
UPDATE run r SET version = r.version + 1, digest = k.digest, head = k.head
FROM unnest({}::text[], {}::text[], {}::bytea[], {}::bytea[]) AS k (tenant, id, digest, head)
WHERE r.tenant = k.tenant AND r.id = k.id
"""
FUNCTION = "SELECT * FROM commit_batch({}::text[], {}::text[], {}::text[], {}::bigint[], {}::bigint[], {}::bytea[], {}::bytea[], {}::bytea[])"


def for_psycopg(statement: str) -> bytes:
    """Write the parameters as psycopg does, to be sent as binary."""
    return statement.replace("{}", "%b").encode()


def for_asyncpg(statement: str) -> str:
    """Write the parameters as the protocol does."""
    parts = statement.split("{}")
    return parts[0] + "".join(f"${n}{part}" for n, part in enumerate(parts[1:], 1))


@dataclass
class Batch:
    """What is written in one transaction, as columns."""

    ids: list[str]
    versions: list[int]
    bodies: list[bytes]
    tenants: list[str] = field(init=False)
    names: list[str] = field(init=False)
    digests: list[bytes] = field(init=False)
    positions: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.tenants = ["default"] * len(self.ids)
        self.names = [f"switch-{1 + n}" for n in range(3)]
        self.digests = [body[:32] for body in self.bodies]
        self.positions = [version + 1 for version in self.versions]

    @property
    def entries(self) -> tuple[Any, ...]:
        """The arguments of the insertion."""
        return self.tenants, self.ids, self.positions, self.bodies

    @property
    def heads(self) -> tuple[Any, ...]:
        """The arguments of the update."""
        return self.tenants, self.ids, self.digests, self.bodies

    @property
    def call(self) -> tuple[Any, ...]:
        """The arguments of the function."""
        columns = (self.positions, self.bodies, self.digests, self.bodies)
        return self.tenants, self.ids, self.names, self.versions, *columns

    def decide(self, locked: list[Any], control: list[Any], operations: list[Any]) -> None:
        """Look at each row as a store does: it has to be there, with the version that the change follows."""
        found = {row[1]: row[2] for row in locked}
        known = {row[0] for row in operations}
        assert len(control) == len(self.names)
        for run, version in zip(self.ids, self.versions, strict=True):
            assert found[run] == version
            assert run in known


class Load:
    """Batches of runs drawn at random, with the versions that they have by then."""

    def __init__(self) -> None:
        self.versions = dict.fromkeys((f"run-{n}" for n in range(RUNS)), 0)
        self.chance = random.Random(7)  # noqa: S311 - the same draws each time
        self.runs = list(self.versions)

    def batch(self, size: int) -> Batch:
        """Draw the next one."""
        ids = self.chance.sample(self.runs, size)
        versions = [self.versions[one] for one in ids]
        for one in ids:
            self.versions[one] += 1
        return Batch(ids, versions, [self.chance.randbytes(PAYLOAD_BYTES) for _ in ids])


class Psycopg:
    """The ways by psycopg."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        texts = (LOCK, CONTROL, OPERATION, INSERT, UPDATE, FUNCTION)
        self.texts = [for_psycopg(text) for text in texts]

    def _execute(self, statement: bytes, *arguments: Any) -> psycopg.Cursor[Any]:
        cursor = self.connection.cursor(binary=True)
        return cursor.execute(statement, arguments or None, prepare=bool(arguments))

    def _read(self, batch: Batch) -> list[psycopg.Cursor[Any]]:
        lock, control, operation, *_ = self.texts
        self._execute(b"BEGIN")
        return [
            self._execute(lock, batch.tenants, batch.ids),
            self._execute(control, batch.names),
            self._execute(operation, batch.tenants, batch.ids),
        ]

    def _write(self, batch: Batch) -> None:
        self._execute(self.texts[3], *batch.entries)
        self._execute(self.texts[4], *batch.heads)
        self._execute(b"COMMIT")

    def pipeline(self, batch: Batch) -> None:
        """Two round trips."""
        with self.connection.pipeline() as pipeline:
            cursors = self._read(batch)
            pipeline.sync()
            batch.decide(*(cursor.fetchall() for cursor in cursors))
            self._write(batch)

    def plain(self, batch: Batch) -> None:
        """Seven."""
        batch.decide(*(cursor.fetchall() for cursor in self._read(batch)))
        self._write(batch)

    def function(self, batch: Batch) -> None:
        """One."""
        cursor = self._execute(self.texts[5], *batch.call)
        assert len(cursor.fetchall()) == len(batch.ids)


class Asyncpg:
    """The ways by asyncpg."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self.connection = connection
        texts = (LOCK, CONTROL, OPERATION, INSERT, UPDATE, FUNCTION)
        self.texts = [for_asyncpg(text) for text in texts]

    async def statements(self, batch: Batch) -> None:
        """Seven round trips."""
        fetch = self.connection.fetch
        lock, control, operation, insert, update, _ = self.texts
        await self.connection.execute("BEGIN")
        batch.decide(
            await fetch(lock, batch.tenants, batch.ids),
            await fetch(control, batch.names),
            await fetch(operation, batch.tenants, batch.ids),
        )
        await fetch(insert, *batch.entries)
        await fetch(update, *batch.heads)
        await self.connection.execute("COMMIT")

    async def function(self, batch: Batch) -> None:
        """One."""
        assert len(await self.connection.fetch(self.texts[5], *batch.call)) == len(batch.ids)


Way = Callable[[list[Batch]], None]


@contextlib.contextmanager
def ways(url: str) -> Iterator[dict[str, Way]]:
    """Give each way as a function that commits some batches one after another."""
    loop = asyncio.new_event_loop()
    sync = Psycopg(url)
    other = Asyncpg(loop.run_until_complete(asyncpg.connect(url)))

    def one_by_one(commit: Callable[[Batch], None]) -> Way:
        return lambda batches: [commit(batch) for batch in batches] and None

    def on_loop(commit: Callable[[Batch], Any]) -> Way:
        async def all_of(batches: list[Batch]) -> None:
            for batch in batches:
                await commit(batch)

        return lambda batches: loop.run_until_complete(all_of(batches))

    with ThreadPoolExecutor(1) as thread:
        yield {
            "psycopg pipeline": one_by_one(sync.pipeline),
            "psycopg pipeline, on a thread": on_loop(
                lambda batch: loop.run_in_executor(thread, sync.pipeline, batch)
            ),
            "psycopg plain": one_by_one(sync.plain),
            "psycopg function": one_by_one(sync.function),
            "asyncpg": on_loop(other.statements),
            "asyncpg function": on_loop(other.function),
        }
    loop.run_until_complete(other.connection.close())
    loop.close()
    sync.connection.close()


Figures = dict[tuple[str, int], list[tuple[float, float]]]


def measure(found: dict[str, Way], load: Load, rounds: int) -> Figures:
    """Return the seconds and the client's CPU seconds of a transaction, by way and size, one of each for each turn."""
    figures: Figures = {}
    names = list(found)
    for turn in range(-2, rounds):  # two turns to warm up: statements are prepared, files grow
        for size in SIZES:
            load.chance.shuffle(names)
            for name in names:
                batches = [load.batch(size) for _ in range(1 if size >= 100 else 4)]
                cpu, began = time.process_time(), time.perf_counter()
                found[name](batches)
                took, burnt = time.perf_counter() - began, time.process_time() - cpu
                if turn >= 0:
                    pair = (took / len(batches), burnt / len(batches))
                    figures.setdefault((name, size), []).append(pair)
    return figures


def show(figures: Figures, names: list[str]) -> None:
    """Print medians: milliseconds, and milliseconds of CPU."""
    print(f"{'':32}" + "".join(f"{'N = ' + str(size):>20}" for size in SIZES))
    print(f"{'':32}" + f"{'ms':>10}{'cpu ms':>10}" * len(SIZES))
    for name in names:
        cells = ""
        for size in SIZES:
            for column in zip(*figures[name, size], strict=True):
                cells += f"{statistics.median(column) * 1000:10.2f}"
        print(f"{name:32}{cells}")


def check(server: PostgresServer, load: Load) -> None:
    """Hold what was written against what was meant: no way has left anything out."""
    rows = server.query("SELECT id, version FROM run")
    assert dict(rows) == load.versions
    assert server.query("SELECT count(*) FROM entry") == [(sum(load.versions.values()),)]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="where the server keeps its data")
    options = parser.parse_args()
    with PostgresServer.opened({"autovacuum": "off"}, parent=options.folder) as server:
        server.query(SCHEMA.format(last=RUNS - 1))
        server.query("VACUUM ANALYZE")
        load = Load()
        with ways(server.url()) as found:
            figures = measure(found, load, options.rounds)
            names = list(found)
        check(server, load)
        where = options.folder or "the disk of temporary files"
        print(f"PostgreSQL {server.version} on {where}, psycopg {psycopg.__version__}", end=" ")
        print(f"({psycopg.pq.__impl__}), asyncpg {asyncpg.__version__}, {options.rounds} turns")
        show(figures, names)


if __name__ == "__main__":
    main()
