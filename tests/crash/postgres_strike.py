"""What strikes a server and those who use it: each disturbance by itself, as long as it is told, at moments that follow from a seed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta

import psutil
import psycopg
from chaos_bench import schedule, soon
from postgres_scene import DATABASE, USER, Scene

HOUR = timedelta(hours=1)
_CLIENTS = f"datname = '{DATABASE}' AND usename = '{USER}'"

Disturbance = Callable[[Scene, random.Random, float], Awaitable[None]]


def until(seconds: float) -> Iterator[float]:
    """Give seconds that are left, while there are some."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        yield left


def terminate(scene: Scene, which: str = "true") -> int:
    """End sessions of workers and clients by `pg_terminate_backend()`; return how many."""
    found = scene.run(
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {_CLIENTS} AND {which}"
    )
    return len(found)


async def strike_workers(scene: Scene, chance: random.Random, seconds: float) -> None:
    """Kill, end and freeze workers, for longer than their lease as a rule, also in the middle of a transaction."""
    slots = len(scene.fleet.slots)
    await scene.fleet.all_strikes(schedule(chance.randrange(1 << 30), seconds, slots))


async def terminate_any(scene: Scene, chance: random.Random, seconds: float) -> None:
    """End any session, whatever it does."""
    for _ in until(seconds):
        rows = scene.run(f"SELECT pid FROM pg_stat_activity WHERE {_CLIENTS} ORDER BY pid")
        for (pid,) in chance.sample(rows, min(len(rows), chance.randrange(1, 5))):
            scene.run(f"SELECT pg_terminate_backend({pid})")
        await asyncio.sleep(chance.uniform(0.02, 0.3))


async def terminate_commits(scene: Scene, chance: random.Random, seconds: float) -> int:
    """End sessions that are about to commit, or in the middle of it; return how many."""
    ended = 0
    for _ in until(seconds):
        burst = chance.uniform(0.05, 0.2)
        for _ in until(burst):
            ended += terminate(scene, "query = 'COMMIT' AND state = 'active'")
            await asyncio.sleep(0)
        await asyncio.sleep(chance.uniform(0.1, 0.3))
    return ended


async def terminate_waiting(scene: Scene, chance: random.Random, seconds: float) -> int:
    """Keep the standby from listening, so that commits that are written wait to be followed, and end the sessions that wait; return how many."""
    assert scene.standby is not None
    ended = 0
    for _ in until(seconds):
        # After a restart of the primary it comes back by and by.
        await soon(lambda: receivers(scene), "the standby listens")
        with stopped_receiver(scene):
            for _ in until(chance.uniform(0.1, 0.6)):
                ended += terminate(scene, "wait_event = 'SyncRep'")
                await asyncio.sleep(0.02)
        await asyncio.sleep(chance.uniform(0.3, 0.6))
    return ended


def receivers(scene: Scene) -> list[tuple[int]]:
    """Return the standby's process that listens, if there is one."""
    assert scene.standby is not None
    return scene.standby.query("SELECT pid FROM pg_stat_wal_receiver")


@contextlib.contextmanager
def stopped_receiver(scene: Scene) -> Iterator[None]:
    """Let the standby hear nothing for a while."""
    ((pid,),) = receivers(scene)
    receiver = psutil.Process(pid)
    receiver.suspend()
    try:
        yield
    finally:
        receiver.resume()


async def restart(scene: Scene, chance: random.Random, seconds: float) -> None:
    """Stop the server, in any way but gently, and start it after a while."""
    ways = ["fast", "immediate", "kill"]
    chance.shuffle(ways)
    for way in ways:
        await asyncio.sleep(chance.uniform(0.2, 2 * seconds / len(ways)))
        scene.leave()
        if way == "kill":
            await asyncio.to_thread(scene.server.kill)
        else:
            await asyncio.to_thread(scene.server.stop, way)
        await asyncio.sleep(chance.uniform(0.0, 1.0))
        await asyncio.to_thread(scene.server.start)


async def fail_over(scene: Scene, chance: random.Random, seconds: float) -> None:
    """Kill the primary, and promote its standby."""
    assert scene.standby is not None
    await asyncio.sleep(chance.uniform(0.5, seconds))
    scene.leave()
    await asyncio.to_thread(scene.server.kill)
    await asyncio.sleep(chance.uniform(0.0, 0.5))
    await asyncio.to_thread(scene.standby.promote)
    scene.server, scene.standby = scene.standby, scene.server


async def cancel_statements(scene: Scene, chance: random.Random, seconds: float) -> None:
    """Let statements take a moment at most, while another session holds rows for longer."""
    await with_role(scene, "SET statement_timeout = '40ms'", foreign_locks, chance, seconds)


async def serialize(scene: Scene, chance: random.Random, seconds: float) -> None:
    """Have every transaction be serializable, unless it says otherwise, and others in its way."""
    isolation = "SET default_transaction_isolation = 'serializable'"
    await with_role(scene, isolation, foreign_locks, chance, seconds)


async def with_role(
    scene: Scene, what: str, then: Disturbance, chance: random.Random, seconds: float
) -> None:
    """Change how the workers' user works, for all sessions, and back."""
    scene.run(f"ALTER ROLE {USER} {what}")
    terminate(scene)
    try:
        await then(scene, chance, seconds)
    finally:
        scene.run(f"ALTER ROLE {USER} RESET ALL")
        terminate(scene)


async def foreign_locks(scene: Scene, chance: random.Random, seconds: float) -> None:
    """Take rows of runs and workers as no worker does: in any order, and slowly."""
    with scene.server.connect(DATABASE, autocommit=False) as foreign:
        for _ in until(seconds):
            await asyncio.to_thread(_lock_some, foreign, chance.randrange(1 << 30))


def _lock_some(foreign: psycopg.Connection, seed: int) -> None:
    chance = random.Random(seed)
    with contextlib.suppress(psycopg.errors.DeadlockDetected, psycopg.errors.QueryCanceled):
        runs = foreign.execute(
            "SELECT tenant, run_id FROM outlast.run WHERE owner IS NOT NULL OR due IS NOT NULL"
        ).fetchall()
        for key in chance.sample(runs, min(len(runs), 4)):
            foreign.execute(
                "SELECT 1 FROM outlast.run WHERE tenant = %s AND run_id = %s FOR UPDATE", key
            )
            time.sleep(chance.uniform(0.0, 0.03))
        foreign.execute("SELECT 1 FROM outlast.worker ORDER BY worker DESC FOR UPDATE")
        time.sleep(chance.uniform(0.0, 0.1))
    foreign.rollback()


async def limit_connections(scene: Scene, chance: random.Random, seconds: float) -> None:
    """Let the user have a few connections only, for half of the time."""
    for _ in range(2):
        scene.run(f"ALTER ROLE {USER} CONNECTION LIMIT {chance.randrange(1, 6)}")
        terminate(scene)
        await asyncio.sleep(seconds / 4)
        scene.run(f"ALTER ROLE {USER} CONNECTION LIMIT -1")
        await asyncio.sleep(seconds / 4)


async def set_server_clock(scene: Scene, chance: random.Random, seconds: float) -> None:
    """Set the server's clock by an hour, forth and back, and right again."""
    scene.is_set = True
    scene.run("CREATE TABLE IF NOT EXISTS public.shift (micros bigint)")
    scene.run("DELETE FROM public.shift; INSERT INTO public.shift VALUES (0)")
    scene.run(f"GRANT SELECT ON public.shift TO {USER}")
    scene.run(
        "CREATE OR REPLACE FUNCTION outlast.micros() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE AS"
        " $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + (SELECT micros FROM public.shift) $$"
    )
    steps = [HOUR, -HOUR]
    chance.shuffle(steps)
    for step in (*steps, timedelta(0)):
        await asyncio.sleep(seconds / 3)
        scene.run(f"UPDATE public.shift SET micros = {step // timedelta(microseconds=1)}")
    # What was asked while it was an hour later stands for an hour.
    scene.load.approves.add("lapse")


async def terminate_listeners(scene: Scene, chance: random.Random, seconds: float) -> None:
    """End the session that listens, in every process, again and again."""
    for _ in until(seconds):
        terminate(scene, "query ~ '^(LISTEN|NOTIFY)'")
        await asyncio.sleep(chance.uniform(0.0, 0.3))


async def nothing(scene: Scene, chance: random.Random, seconds: float) -> None:
    """Let them work."""
    await asyncio.sleep(seconds)
