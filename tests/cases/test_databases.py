"""Cases of section I: the database, its connections and threads, and the event loop."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from cases_bench import LocalApp, until

import outlast
from outlast.app import SystemClock, migrate_store
from outlast.journal.entry import StepCompleted
from outlast.store.change import RunKey, WorkerId, WorkerRow
from outlast.store.migrate import Migration, read_migrations
from outlast.store.postgres import schema
from outlast.store.sqlite.connection import SQLiteOptions
from outlast.store.sqlite.store import open_sqlite
from outlast.testing import SimulatedClock, Simulation, replay_run
from outlast.worker.lease import Lease
from outlast.worker.worker import WorkerOptions
from outlast.workflows.registry import Registry
from postgres_server import until as wait_until

bodies: Counter[str] = Counter()
meeting: list[threading.Barrier] = []
opened: list[threading.Event] = []
item = outlast.Signal("item", int)
KNOWN = read_migrations("outlast.store.postgres")
STORE_THREADS = ("outlast-sqlite", "outlast-postgres")


@dataclass(frozen=True)
class State:
    """The state of an agent, of about 20 KB."""

    number: int
    notes: dict[str, list[str]]
    text: str


def state_of(number: int) -> State:
    """Return a state that no other number has."""
    notes = {f"note {one}": [f"{number}/{one}/{two}" for two in range(3)] for one in range(3)}
    return State(number, notes, f"{number:06}é" * 2500)


@outlast.step
async def save(number: int) -> State:
    await asyncio.sleep(0)
    return state_of(number)


@outlast.step
def save_in_thread(number: int) -> State:
    return state_of(number)


SAVES: dict[str, Any] = {"async": save, "in threads": save_in_thread}


@outlast.workflow
async def save_many(kind: str, numbers: int) -> list[int]:
    states = await asyncio.gather(*[SAVES[kind](one) for one in range(numbers)])
    assert list(states) == [state_of(one) for one in range(numbers)]
    return [one.number for one in states]


@outlast.step
def write_together(number: int) -> int:
    """Return at the same moment as the others do."""
    meeting[-1].wait(timeout=30)
    return number


@outlast.workflow
async def write_thirty() -> list[int]:
    return list(await asyncio.gather(*[write_together(one) for one in range(30)]))


@outlast.workflow
async def receive_thirty() -> list[int]:
    return [await outlast.receive(item) for _ in range(30)]


@outlast.step
def wait_for_the_loop() -> bool:
    """Block this thread until the event loop has done something."""
    bodies["blocked"] += 1
    return opened[-1].wait(timeout=30)


@outlast.effect(start_to_close_timeout=timedelta(minutes=1))
def effect_that_waits_for_the_loop() -> bool:
    bodies["blocked"] += 1
    return opened[-1].wait(timeout=30)


@outlast.step
async def open_the_gate() -> None:
    while not bodies["blocked"]:
        await asyncio.sleep(0.01)
    opened[-1].set()


WAITS: dict[str, Any] = {"step": wait_for_the_loop, "effect": effect_that_waits_for_the_loop}


@outlast.workflow
async def beside_a_thread(kind: str) -> bool:
    waited, _ = await asyncio.gather(WAITS[kind](), open_the_gate())
    return waited


@outlast.step
async def block_until_warned() -> bool:
    """Block the event loop until somebody has said so."""
    for _ in range(3000):
        if opened[-1].is_set():
            return True
        time.sleep(0.01)
    return False


@outlast.workflow
async def blocks_the_loop() -> bool:
    return await block_until_warned()


@outlast.step
async def work(name: str) -> str:
    bodies[name] += 1
    await asyncio.sleep(0.001)
    return name


@outlast.step
def work_in_thread(name: str) -> str:
    bodies[f"{name} in a thread"] += 1
    return name


@outlast.workflow
async def worker_bee(name: str) -> str:
    return await work(name) + await work_in_thread(name)


@outlast.workflow
async def wait_for_item() -> int:
    return await outlast.receive(item)


CODE = [
    *SAVES.values(),
    *WAITS.values(),
    *(save_many, write_together, write_thirty, receive_thirty, open_the_gate, beside_a_thread),
    *(block_until_warned, blocks_the_loop, work, work_in_thread, worker_bee, wait_for_item),
]


@pytest.fixture(autouse=True)
def _clean() -> None:
    bodies.clear()
    meeting.clear()
    opened[:] = [threading.Event()]


# 136


def check_states(entries: list[Any], numbers: int) -> None:
    """Each outcome holds its own state, whole."""
    found = [SAVES["async"].result.decode(bytes(one.value)) for one in entries]
    assert sorted(one.number for one in found) == list(range(numbers))
    assert all(one == state_of(one.number) for one in found)


@pytest.mark.without_always_replay("it is replayed once, at its end: 200 turns of 4 MB")
@pytest.mark.parametrize("kind", list(SAVES))
def test_case_136_two_hundred_large_states_at_once_decode(kind: str, url: str) -> None:
    """On a SQLite file, saved by steps on the event loop or in threads: what is stored is what each of them returned."""

    async def main() -> list[int]:
        async with LocalApp(url, CODE) as app:
            handle = await app.start(save_many(kind, 200), id="r")
            result = await handle.result()
            entries = [one.entry for one in await handle.journal()]
            check_states([one for one in entries if isinstance(one, StepCompleted)], 200)
            end = await replay_run(app.store, Registry(CODE), SystemClock(), RunKey("default", "r"))
            assert end == entries[-1]
            return result

    assert asyncio.run(main()) == list(range(200))


def test_case_136_two_hundred_runs_at_once_decode() -> None:
    """The same over 200 runs of one worker, in its group commits."""

    async def scenario(sim: Simulation) -> None:
        worker = await sim.start_worker()
        handles = [
            await worker.client.start(save_many("async", 2), id=f"r{one}") for one in range(200)
        ]
        for handle in handles:
            assert await handle.result() == [0, 1]
            entries = [one.entry for one in await handle.journal()]
            check_states([one for one in entries if isinstance(one, StepCompleted)], 2)

    Simulation(CODE).run(scenario)


# 137


def test_case_137_thirty_threads_that_return_at_once_are_all_kept(url: str) -> None:
    """Thirty steps in threads of their own return at one moment: thirty outcomes."""
    meeting.append(threading.Barrier(30))

    async def main() -> tuple[list[int], int]:
        async with LocalApp(url, CODE) as app:
            handle = await app.start(write_thirty(), id="r")
            result = await handle.result()
            journal = await handle.journal()
            return result, sum(isinstance(one.entry, StepCompleted) for one in journal)

    assert asyncio.run(main()) == (list(range(30)), 30)


def test_case_137_thirty_threads_that_send_at_once_are_all_heard(url: str) -> None:
    """Thirty clients in threads and on connections of their own send to one run: thirty messages, each once."""
    meeting.append(threading.Barrier(30))

    def send(number: int) -> None:
        async def go() -> None:
            async with outlast.connect(url, principal="tester") as client:
                await asyncio.to_thread(meeting[-1].wait, 30)
                await client.handle("r").send(item, number)

        asyncio.run(go())

    async def main() -> list[int]:
        async with LocalApp(url, CODE) as app:
            handle = await app.start(receive_thirty(), id="r")
            senders = [threading.Thread(target=send, args=(one,)) for one in range(30)]
            for one in senders:
                one.start()
            result = await handle.result()
            for one in senders:
                await asyncio.to_thread(one.join)
            return result

    assert sorted(asyncio.run(main())) == list(range(30))


# 139


@pytest.mark.parametrize("kind", list(WAITS))
def test_case_139_a_sync_body_leaves_the_loop_alone(kind: str, file_url: str) -> None:
    """It blocks its thread until the event loop has done other work of the same run."""

    async def main() -> bool:
        async with LocalApp(file_url, CODE) as app:
            return await app.run(beside_a_thread(kind), id="r")

    assert asyncio.run(main()) is True


class _Warned(logging.Handler):
    """Opens the gate at a warning."""

    def emit(self, record: logging.LogRecord) -> None:
        """Look at one record."""
        if "stood still" in record.getMessage():
            opened[-1].set()


@pytest.fixture
def gate_opens_at_a_warning() -> Iterator[None]:
    """Let `block_until_warned` return as soon as the warning is in the log."""
    handler = _Warned()
    logging.getLogger("outlast.worker").addHandler(handler)
    yield
    logging.getLogger("outlast.worker").removeHandler(handler)


@pytest.mark.usefixtures("gate_opens_at_a_warning")
def test_case_139_a_blocked_loop_is_told_where_it_stands(
    file_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An async body that does not give way is named while it blocks, once, with what to write instead."""

    async def main() -> bool:
        async with LocalApp(file_url, CODE, lease=timedelta(seconds=3)) as app:
            return await app.run(blocks_the_loop(), id="r")

    assert asyncio.run(main()) is True
    (said,) = [one for one in caplog.records if "stood still" in one.getMessage()]
    assert "in block_until_warned" in said.getMessage()
    assert "plain `def`" in said.getMessage()


class _Store:
    """Renews everything."""

    def renew(self, worker: WorkerId) -> bool:
        """Renew."""
        return True


class _Thread:
    """A thread whose ticks are made by hand."""

    tick: Callable[[], None]

    def every(self, seconds: float, tick: Callable[[], None], *, name: str) -> Callable[[], None]:
        """Keep the tick."""
        self.tick = tick
        return lambda: None


def test_case_139_a_blocked_loop_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Once as long as it stands still, again after it has turned; never of a loop that turns, or that was stopped."""
    thread = _Thread()
    lease: Any = Lease(
        _Store(), WorkerId("w"), timedelta(seconds=15), SimulatedClock(), lambda: None, lambda: True
    )
    lease.begin(thread)

    def said(ticks: int) -> int:
        caplog.clear()
        for _ in range(ticks):
            thread.tick()
        return sum("stood still for 5.0 s" in one.getMessage() for one in caplog.records)

    assert said(1) == 0
    assert said(5) == 1
    assert said(5) == 0
    for _ in range(5):
        lease.loop_turned()
        assert said(1) == 0
    assert said(5) == 1
    lease.loop_turned()
    lease.wind_down()
    assert said(5) == 0


@pytest.mark.parametrize("lease", [0.3, 15])
def test_case_139_a_suspended_process_is_not_called_blocked(
    lease: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Frozen for a minute at any moment, threads and all, and continued: nothing had blocked."""

    async def scenario(sim: Simulation) -> None:
        options = WorkerOptions(library="simulated", lease=timedelta(seconds=lease))
        worker = await sim.start_worker(options=options)
        for _ in range(20):
            await asyncio.sleep(1.3)
            worker.freeze()
            await asyncio.sleep(60)
            worker.thaw()

    Simulation(CODE).run(scenario)
    assert not [one for one in caplog.records if "stood still" in one.getMessage()]


# 140


def test_case_140_a_hundred_starts_and_stops_under_load_warn_of_nothing(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each stop comes in the middle of work: threads end before the store, no word is said, every step runs once."""
    before = set(threading.enumerate())
    # A connection to a server costs more than one to a file, and there are seven.
    rounds = 100 if url.startswith("sqlite") else 15
    names = [f"r{number}" for number in range(rounds * 2)]

    async def main() -> list[str]:
        loop_errors: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: loop_errors.append(told))
        for number in range(rounds):
            async with LocalApp(url, CODE) as app:
                for name in names[number * 2 : number * 2 + 2]:
                    await app.start(worker_bee(name), id=name)
            left = {one for one in threading.enumerate() if one.name.startswith(STORE_THREADS)}
            assert left <= before
        async with LocalApp(url, CODE) as app:
            results = [await app.handle(name, worker_bee).result() for name in names]
        assert loop_errors == []
        return results

    with caplog.at_level(logging.WARNING):
        results = asyncio.run(main())
    gc.collect()
    assert results == [name * 2 for name in names]
    assert set(bodies.values()) == {1}
    assert len(bodies) == rounds * 4
    assert caplog.records == []


# 142

OPEN = """
import asyncio, sys
from outlast.app import SystemClock
from outlast.store.sqlite.store import open_sqlite

async def main():
    store = await open_sqlite(sys.argv[1], clock=SystemClock())
    print(await store.timeline(), flush=True)
    await store.close()
"""
LOCK = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN IMMEDIATE; CREATE TABLE half (x)")
print("held", flush=True)
sys.stdin.readline()
"""
DIE = f"""{OPEN}
import os, signal
from outlast.store.sqlite import connection
apply = connection._Schema.apply

def die(schema, migration):
    apply(schema, migration)
    print("held", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

connection._Schema.apply = die
asyncio.run(main())
"""
AT_ONCE = f"""{OPEN}
print("ready", flush=True)
sys.stdin.readline()
for _ in range(2):
    asyncio.run(main())
"""


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start scripts on the file `s.db`, or with words of their own, and leave none behind."""
    started: list[subprocess.Popen[str]] = []

    def start(text: str, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", text, *(words or (str(tmp_path / "s.db"),))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


async def opened_and_closed(path: Path, options: SQLiteOptions | None = None) -> str:
    """Open a store, and return its line of history."""
    store = await open_sqlite(path, clock=SystemClock(), options=options)
    try:
        return await store.timeline()
    finally:
        await store.close()


def line_of(process: subprocess.Popen[str]) -> str:
    """Return the next line of a process."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("exists", [False, True], ids=["a new file", "a file of ours"])
def test_case_142_a_held_file_is_named_and_not_waited_for_for_ever(
    exists: bool, tmp_path: Path, script: Callable[[str], subprocess.Popen[str]]
) -> None:
    """While another session holds the lock that a migration needs, opening ends in an error that says who to look for."""
    path = tmp_path / "s.db"
    if exists:
        asyncio.run(opened_and_closed(path))
        connection = apsw.Connection(str(path))
        connection.execute(
            "DELETE FROM migration WHERE number = (SELECT max(number) FROM migration)"
        )
        connection.close()
    holder = script(LOCK)
    assert line_of(holder) == "held"
    short = SQLiteOptions(busy_timeout=timedelta(seconds=0.2))
    with pytest.raises(outlast.StoreUnavailableError, match=r"s\.db was held by another") as caught:
        asyncio.run(opened_and_closed(path, short))
    assert "lsof" in caught.value.hint


@pytest.mark.crash
@pytest.mark.parametrize("text", [LOCK, DIE], ids=["a session", "a migration"])
def test_case_142_the_lock_of_a_killed_process_is_gone(
    text: str, tmp_path: Path, script: Callable[[str], subprocess.Popen[str]]
) -> None:
    """Killed in the middle of a session or of a migration: the next start migrates the file, and all of it is sound."""
    path = tmp_path / "s.db"
    killed = script(text)
    assert line_of(killed) == "held"
    killed.kill()
    killed.wait()
    line = asyncio.run(opened_and_closed(path, SQLiteOptions(busy_timeout=timedelta(seconds=5))))
    assert line == asyncio.run(opened_and_closed(path))
    connection = apsw.Connection(str(path))
    assert connection.pragma("integrity_check") == "ok"
    assert not list(connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'half'"))
    connection.close()


HOLD_ON_SERVER = """
import psycopg, sys
from outlast.store.postgres.look import migration_lock
connection = psycopg.connect(sys.argv[1], application_name="the holder")
connection.execute(sys.argv[2].replace("MIGRATION", str(migration_lock("outlast"))))
print("held", flush=True)
sys.stdin.readline()
"""
DIE_ON_SERVER = """
import os, signal, sys
from outlast.app import migrate_store
from outlast.store.postgres import schema
apply = schema._Schema.apply

def die(self, migration):
    apply(self, migration)
    print("held", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

schema._Schema.apply = die
migrate_store(sys.argv[1])
"""
ON_MIGRATIONS = "SELECT pg_advisory_xact_lock(MIGRATION)"
ON_A_TABLE = "SELECT 1 FROM outlast.run"


@pytest.mark.parametrize("statement", [ON_MIGRATIONS, ON_A_TABLE], ids=["lock", "table"])
def test_case_142_who_is_in_the_way_on_a_server_is_named(
    statement: str,
    postgres_url: str,
    script: Callable[..., subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that stands still in a transaction, with the lock of migrations or a table: migrating ends, and says which; once that is gone it is done."""
    migrate_store(postgres_url)
    later = Migration(
        len(KNOWN) + 1, "pre", "later", "ALTER TABLE run ADD COLUMN later bigint", "x"
    )
    monkeypatch.setattr(schema, "read_migrations", lambda _: (*KNOWN, later))
    monkeypatch.setattr(schema, "LOCK_WAIT", "50ms")
    holder = script(HOLD_ON_SERVER, postgres_url, statement)
    assert line_of(holder) == "held"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        asked = "SELECT pid FROM pg_stat_activity WHERE application_name = 'the holder'"
        ((pid,),) = connection.execute(asked).fetchall()
        with pytest.raises(
            outlast.StoreUnavailableError, match=f"process {pid} of .*the holder"
        ) as told:
            migrate_store(postgres_url)
        assert "idle in transaction" in told.value.message
        assert f"pg_terminate_backend({pid})" in told.value.hint
        holder.kill()
        wait_until(
            lambda: not connection.execute(asked).fetchall(), "the server sees that it is gone"
        )
    assert [one.title for one in migrate_store(postgres_url)] == [later.title]


@pytest.mark.crash
def test_case_142_a_migration_that_is_killed_on_a_server_holds_nothing(
    postgres_url: str, script: Callable[..., subprocess.Popen[str]]
) -> None:
    """Its transaction ends with its process: the next one does all of it."""
    killed = script(DIE_ON_SERVER, postgres_url)
    assert line_of(killed) == "held"
    killed.wait()
    assert len(migrate_store(postgres_url)) == len(KNOWN)
    assert migrate_store(postgres_url) == []


# 143


def test_case_143_ten_processes_migrate_an_empty_file(
    script: Callable[[str], subprocess.Popen[str]],
) -> None:
    """All at once, and each of them again: one line of history, no error."""
    ten = [script(AT_ONCE) for _ in range(10)]
    for process in ten:
        assert line_of(process) == "ready"
    for process in ten:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = [tuple(process.communicate(timeout=60)[0].split()) for process in ten]
    assert [process.returncode for process in ten] == [0] * 10
    assert {len(one) for one in said} == {2}
    assert len({line for one in said for line in one}) == 1


# 145


def test_case_145_a_hundred_waiters_do_not_hold_up_a_renewal(url: str) -> None:
    """A hundred callers wait for results and every read is stuck: leases are renewed, and the run that ends it all is moved."""
    busy, gate = threading.Semaphore(0), threading.Event()

    async def main() -> tuple[bool, list[int]]:
        async with LocalApp(url, CODE) as app:
            handle = await app.start(wait_for_item(), id="r")
            waiters = [asyncio.ensure_future(handle.result()) for _ in range(100)]
            await asyncio.sleep(0)
            found: Any = app.store
            lanes = found._reading if isinstance(found._reading, list) else [found._reading]
            for lane in lanes:
                lane.submit(lambda: (busy.release(), gate.wait(30)))
            await asyncio.to_thread(lambda: [busy.acquire() for _ in lanes])
            held = await asyncio.to_thread(app.store.renew, app.worker.id)
            await handle.send(item, 7)
            assert not gate.is_set()
            gate.set()
            return held, await asyncio.gather(*waiters)

    assert asyncio.run(main()) == (True, [7] * 100)


def test_case_145_a_renewal_goes_before_all_that_waits_to_be_written(tmp_path: Path) -> None:
    """A hundred claims and commits are queued: the renewal is the next to be written."""
    done: list[str] = []
    entered, gate = threading.Event(), threading.Event()

    async def main() -> None:
        store: Any = await open_sqlite(tmp_path / "s.db", clock=SystemClock())
        worker = WorkerId("w")
        await store.register(
            WorkerRow(worker, "host", 1, "b", ("wait_for_item",), timedelta(minutes=1))
        )
        store._writing.submit(lambda: (entered.set(), gate.wait(30)))
        await until(entered.is_set, "the writing thread is busy")
        claims = [
            asyncio.ensure_future(store.claim(worker, frozenset({"wait_for_item"}), 1))
            for _ in range(100)
        ]
        await asyncio.sleep(0)
        renewing = asyncio.ensure_future(asyncio.to_thread(store.renew, worker))
        await until(lambda: store._writing._urgent, "the renewal is queued")
        # These are called on the writing thread, in the order in which it writes.
        store._writing._urgent[0].future.add_done_callback(lambda _: done.append("renewal"))
        for job in store._writing._queue:
            job.future.add_done_callback(lambda _: done.append("claim"))
        gate.set()
        await asyncio.gather(renewing, *claims)
        await store.close()

    asyncio.run(main())
    assert done == ["renewal", *["claim"] * 100]
