"""A process of its own for tests: `python child.py COMMAND DATABASE [ARGUMENT]`. Speaks in lines, waits for a line to go on."""

import asyncio
import os
import resource
import sys
import time
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from outlast.errors import StoreUnavailableError
from outlast.store.change import Applied, RunKey, WorkerId, WorkerRow
from outlast.store.sqlite.store import open_sqlite
from outlast.testing.conformance.bench import WORKFLOWS, ending, following, row, starting


class SystemClock:
    """The real time."""

    def now(self):
        """Return the wall time."""
        return datetime.now(UTC)

    def monotonic(self):
        """Return the time since boot."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)


def say(*words):
    """Write a line to the parent."""
    print(*words, flush=True)


def wait():
    """Wait for a line of the parent."""
    sys.stdin.readline()


def registration(name):
    """Return a worker of this process with a lease of an hour."""
    return WorkerRow(
        WorkerId(name), "host", os.getpid(), "b1", tuple(WORKFLOWS), timedelta(hours=1)
    )


async def claim(path, name):
    """Claim runs until none is left, and name them."""
    store = await open_sqlite(path, clock=SystemClock())
    await store.register(registration(name))
    say("ready")
    wait()
    while taken := (await store.claim(WorkerId(name), WORKFLOWS, 7)).runs:
        changes = [ending(claimed.head) for claimed in taken]
        for verdict in await store.commit(changes):
            assert isinstance(verdict, Applied), verdict
        for claimed in taken:
            say(claimed.head.run.run_id)
    await store.close()


async def migrate(path, _):
    """Open the store at the same moment as others."""
    say("ready")
    wait()
    store = await open_sqlite(path, clock=SystemClock())
    say(await store.timeline())
    await store.close()


async def hold(path, name):
    """Own a run until killed; with the name `parent`, leave a forked child behind that lives on."""
    store = await open_sqlite(path, clock=SystemClock())
    await store.register(registration(name))
    (taken,) = (await store.claim(WorkerId(name), WORKFLOWS, 1)).runs
    if name == "parent":
        child = os.fork()
        if child == 0:
            os.closerange(0, 3)
            while True:
                time.sleep(60)
        say(child)
    say(taken.head.run.run_id)
    wait()


async def write(path, name):
    """Append entries until killed, saying after each commit how many are durable."""
    store = await open_sqlite(path, clock=SystemClock())
    await store.register(registration(name))
    await store.commit([starting(name, worker=WorkerId(name))])
    head = await store.head(RunKey("default", name))
    while True:
        change = following(head, entries=3)
        (verdict,) = await store.commit([change])
        assert isinstance(verdict, Applied), verdict
        head = replace(head, version=head.version + 1, next_seq=head.next_seq + 3)
        say(head.next_seq)


async def fill(path, name):
    """Write until the disk refuses, then again once it does not."""
    store = await open_sqlite(path, clock=SystemClock())
    await store.register(registration(name))
    await store.commit([starting(name, worker=WorkerId(name))])
    head = await store.head(RunKey("default", name))
    if os.environ.get("LIMIT"):
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (int(os.environ["LIMIT"]), resource.RLIM_INFINITY)
        )

    def next_change():
        return _large(head)

    try:
        for _ in range(10_000):
            await store.commit([next_change()])
            head = replace(head, version=head.version + 1, next_seq=head.next_seq + 1)
    except StoreUnavailableError as error:
        say(str(error).replace("\n", " "))
    say("refused")
    wait()
    if os.environ.get("LIMIT"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    rows = await store.journal(head.run)
    (verdict,) = await store.commit([next_change()])
    say(type(verdict).__name__, len(rows) == head.next_seq)
    await store.close()


def _large(head):
    change = following(head)
    return replace(change, entries=(row(head.next_seq, bytes(20_000)),))


COMMANDS = {"claim": claim, "migrate": migrate, "hold": hold, "write": write, "fill": fill}

if __name__ == "__main__":
    asyncio.run(COMMANDS[sys.argv[1]](sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""))
