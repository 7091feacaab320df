"""One scene on PostgreSQL: workers in processes of their own, hundreds of runs, a trouble; then everything ends, and all of it is checked."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import chaos_flow
import psycopg
from chaos_bench import Fleet, soon
from chaos_check import check_run
from chaos_load import PRINCIPAL, Load
from chaos_scene import check_log, rage
from postgres_audit import begin_audit, check_audit

from outlast.app import SystemClock, SystemRandom
from outlast.client import Client
from outlast.store.postgres.setting import read_setting
from outlast.store.postgres.store import open_postgres
from postgres_server import PostgresServer, failover_url
from postgres_shared import memory_folder

USER = "app"
DATABASE = "chaos"
PASSWORD = "app"  # noqa: S105 - of a server that listens on the loopback for the length of a test
LEASE_SECONDS = 1.5
"""Longer than two busy processors keep a renewal waiting, as a rule; where they do it costs a takeover and nothing else."""

_SETTINGS: dict[str, object] = {
    "max_wal_size": "256MB",
    # Who stand in each other's way are told soon.
    "deadlock_timeout": "50ms",
}
_LEFT = (
    ("run", "owner IS NOT NULL OR due IS NOT NULL OR mail <> 0 OR unread <> 0"),
    ("worker", "true"),
    ("operation", "true"),
    ("outbox", "true"),
    ("watch", "true"),
    ("notice", "true"),
    ("task", "true"),
    ("message", "consumed = 0"),
    ("approval", "state = 'pending'"),
)


class PostgresFleet(Fleet):
    """Worker processes on one database.

    Attributes:
        offs: By how many seconds the clocks of their machines are wrong, one process after the other.
    """

    script = Path(__file__).parent / "postgres_process.py"
    offs: Iterator[float] = itertools.repeat(0.0)

    def launch(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a worker process, on the next machine."""
        return super().launch(*options, "--off", str(next(self.offs)))


@dataclass
class Scene:
    """A server, and what stands in for it when it is gone.

    Args:
        server: The one that takes writes now.
        standby: Another, that follows it.
        fleet: The workers.
        is_set: The server's clock was set.
    """

    server: PostgresServer
    fleet: PostgresFleet
    standby: PostgresServer | None = None
    is_set: bool = False
    load: Load = field(init=False)
    _admin: psycopg.Connection[Any] | None = field(default=None, repr=False)

    @property
    def admin(self) -> psycopg.Connection[Any]:
        """A superuser's connection; another one after the server was away."""
        if self._admin is None or self._admin.closed or self._admin.broken:
            self._admin = self.server.connect(DATABASE)
        return self._admin

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement as the superuser."""
        try:
            cursor = self.admin.execute(statement.encode())
        except psycopg.OperationalError:
            cursor = self.admin.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []

    def leave(self) -> None:
        """Let go of the server's connection."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    @property
    def url(self) -> str:
        """How clients reach it."""
        if self.standby is None:
            return self.server.url(DATABASE, USER)
        servers = (self.server, self.standby)
        return failover_url(*servers, database=DATABASE, user=USER, password=PASSWORD)


Trouble = Callable[[Scene], Awaitable[None]]


@contextlib.contextmanager
def staged(
    directory: Path,
    *options: str,
    standby: bool = False,
    query: str = "",
    offs: Sequence[float] = (0.0,),
    settings: Mapping[str, object] | None = None,
) -> Iterator[Scene]:
    """Give a scene on a server of its own, with a user who is no superuser.

    Args:
        options: Of all workers.
        query: Added to the store's URL.
        offs: By how many seconds the clocks of the workers' machines are wrong.
        settings: Of the server.
    """
    memory = memory_folder()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            PostgresServer.opened({**_SETTINGS, **(settings or {})}, parent=memory)
        )
        server.query(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")
        server.query(f"CREATE DATABASE {DATABASE} OWNER {USER}")
        given = ("--lease", str(LEASE_SECONDS), *options)
        fleet = stack.enter_context(PostgresFleet.opened(directory, *given))
        scene = Scene(server, fleet)
        stack.callback(scene.leave)
        if standby:
            settings = {"wal_retrieve_retry_interval": "100ms"}
            scene.standby = stack.enter_context(server.standby(settings=settings))
        fleet.url = scene.url
        if query:
            fleet.url += f"{'&' if '?' in fleet.url else '?'}{query}"
        fleet.offs = itertools.cycle(offs)
        yield scene


async def play(  # noqa: PLR0913 - what a scene is made of
    scene: Scene,
    trouble: Trouble,
    *,
    seed: int,
    workers: int = 3,
    at_once: int = 150,
    pause: float = 0.1,
) -> int:
    """Let trouble come while hundreds of runs are in flight, let all end, and check everything; return how many runs there were.

    Args:
        at_once: So many runs are started first.
        pause: Seconds between two starts after that.
    """
    print(f"OUTLAST_CHAOS_SEED={seed}")
    fleet, began = scene.fleet, time.monotonic()
    clock = SystemClock()
    store = await open_postgres(read_setting(fleet.url), clock=clock)
    try:
        begin_audit(scene.admin)
        client = Client(store, random=SystemRandom(), principal=PRINCIPAL)
        load = scene.load = Load(client, fleet.directory, seed, insists=True)
        await fleet.start(workers)
        print(f"{time.monotonic() - began:.1f} s: the workers work")
        await rage(load, lambda _: trouble(scene), pause, at_once)
        print(f"{time.monotonic() - began:.1f} s: all runs have ended")
        await soon(lambda: dead_workers(scene) == [], "the dead are buried")
        await fleet.end()
        await soon(chaos_flow.all_arrived, "what was sent late arrives")
        for label in sorted(load.accepted.starts):
            await check_run(store, clock, label, load.accepted)
    finally:
        await store.close()
    check_database(scene)
    check_log(fleet)
    print(f"{time.monotonic() - began:.1f} s: all is checked")
    return len(load.accepted.starts)


def dead_workers(scene: Scene) -> list[tuple[Any, ...]]:
    """Return the workers whose lease is over."""
    return scene.run("SELECT * FROM outlast.worker WHERE renewed + lease < outlast.micros()")


def check_database(scene: Scene) -> None:
    """Nobody owns anything, nothing is left behind, counts are right; and what the server has noted holds."""
    for table, where in _LEFT:
        found = scene.run(f"SELECT * FROM outlast.{table} WHERE {where}")  # noqa: S608 - of this module
        assert found == [], f"left behind in {table}: {found}"
    wrong = scene.run(
        "SELECT run_id FROM outlast.run AS run WHERE next_seq <> (SELECT count(*) FROM outlast.entry AS entry"
        " WHERE (entry.tenant, entry.run_id, entry.generation) = (run.tenant, run.run_id, run.generation))"
        " OR message_number < (SELECT count(*) FROM outlast.message AS message"
        " WHERE (message.tenant, message.run_id) = (run.tenant, run.run_id))"
    )
    assert wrong == [], wrong
    check_audit(scene.admin, leases=not scene.is_set)
