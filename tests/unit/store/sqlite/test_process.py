"""Several real processes on one file: nothing twice, nothing lost, the dead noticed at once."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

import outlast.store
from outlast.store.change import RunKey, WorkerId, WorkerRow
from outlast.store.sqlite.store import open_sqlite
from outlast.testing.conformance import ManualClock
from outlast.testing.conformance.bench import WORKFLOWS, starting

CHILD = Path(__file__).with_name("child.py")
SOURCE = str(Path(outlast.store.__file__).parents[2])


class Child:
    """A child process that speaks in lines."""

    def __init__(self, *arguments, **environment):
        environment = {**os.environ, "PYTHONPATH": SOURCE, **environment}
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def line(self):
        """Return its next line."""
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return line.strip()

    def go(self):
        """Let it go on."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def finish(self):
        """Return its last lines; it must have ended well, and silently."""
        output, errors = self.process.communicate(timeout=60)
        assert (self.process.returncode, errors) == (0, "")
        return output.split()

    def kill(self):
        """End it as the kernel does when memory is short."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=60)


@pytest.fixture
def children():
    """Start children, and leave none behind."""
    started = []

    def start(*arguments, **environment):
        started.append(Child(*arguments, **environment))
        return started[-1]

    yield start
    for child in started:
        child.process.kill()
        child.process.wait()
        for pipe in (child.process.stdin, child.process.stdout, child.process.stderr):
            with contextlib.suppress(OSError):
                pipe.close()


def with_store(path, use):
    """Run `use(store)` on a store at `path`."""

    async def main():
        from child import SystemClock

        store = await open_sqlite(path, clock=SystemClock())
        try:
            return await use(store)
        finally:
            await store.close()

    return asyncio.run(main())


@pytest.fixture(autouse=True)
def on_path(monkeypatch):
    """Let tests import the child's clock."""
    monkeypatch.syspath_prepend(str(CHILD.parent))


def test_two_processes_claim_each_run_once(tmp_path, children):
    """Two hundred runs, two processes: each run is taken exactly once, and nobody hears of locks."""
    path = tmp_path / "s.db"

    async def fill(store):
        await store.commit([starting(f"run-{number}") for number in range(200)])

    with_store(path, fill)
    both = [children("claim", path, name) for name in ("w1", "w2")]
    for child in both:
        assert child.line() == "ready"
    for child in both:
        child.go()
    taken = [run for child in both for run in child.finish()]
    assert sorted(taken) == sorted(f"run-{number}" for number in range(200))


def test_ten_processes_migrate_at_once(tmp_path, children):
    """Ten processes open an empty file at once, and all see one history."""
    all_ten = [children("migrate", tmp_path / "s.db") for _ in range(10)]
    for child in all_ten:
        assert child.line() == "ready"
    for child in all_ten:
        child.go()
    assert len({tuple(child.finish()) for child in all_ten}) == 1


@pytest.mark.crash
@pytest.mark.parametrize("name", ["worker", "parent"])
def test_killed_worker_is_noticed_at_once(tmp_path, children, name):
    """A killed process loses its runs at once, though its lease has an hour left and a forked child lives on."""
    path = tmp_path / "s.db"

    async def fill(store):
        await store.commit([starting()])

    async def take(store):
        await store.register(
            WorkerRow(WorkerId("w2"), "host", 1, "b1", ("fix",), timedelta(hours=1))
        )
        before = await store.claim(WorkerId("w2"), WORKFLOWS, 9)
        child.kill()
        listed = {worker.row.worker: worker.live for worker in await store.workers()}
        claim = await store.claim(WorkerId("w2"), WORKFLOWS, 9)
        return before, listed, claim, await store.workers()

    with_store(path, fill)
    child = children("hold", path, name)
    orphan = int(child.line()) if name == "parent" else None
    assert child.line() == "run"
    try:
        before, listed, claim, after = with_store(path, take)
    finally:
        if orphan is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(orphan, signal.SIGKILL)
    assert before.runs == ()
    assert listed == {name: False, "w2": True}
    (taken,) = claim.runs
    assert (taken.head.owner, taken.head.epoch, taken.head.lapses) == ("w2", 2, 1)
    assert taken.stopped_ago < timedelta(seconds=1)
    assert [worker.row.worker for worker in after] == ["w2"]
    assert not (tmp_path / "s.db-workers" / f"{name}.lock").exists()


@pytest.mark.crash
@pytest.mark.parametrize("entries", [1, 20, 77])
def test_killed_writer_leaves_a_sound_file(tmp_path, children, entries):
    """After SIGKILL in the middle of writes the file is sound, and every entry that was confirmed is there."""
    path = tmp_path / "s.db"
    child = children("write", path, "w1")
    durable = 0
    while durable < entries:
        durable = int(child.line())
    child.kill()
    rows = with_store(path, lambda store: store.journal(RunKey("default", "w1")))
    assert len(rows) >= durable
    assert len(rows) % 3 == 1
    connection = apsw.Connection(str(path))
    assert connection.pragma("integrity_check") == "ok"
    connection.close()


def test_full_disk_is_told_and_survived(tmp_path, children):
    """A commit that the disk refuses writes nothing and says so; when there is room again, work goes on."""
    child = children("fill", tmp_path / "s.db", "w1", LIMIT="400000")
    message = child.line()
    assert "s.db" in message
    assert "nothing of this was written" in message
    assert child.line() == "refused"
    child.go()
    assert child.finish() == ["Applied", "True"]


@contextlib.contextmanager
def small_disk(place, options):
    """Mount a small disk in memory, where that is allowed."""
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_disk_without_space(tmp_path, children):
    """The same on a disk that is really full."""
    with small_disk(tmp_path / "disk", "size=2m") as disk:
        (disk / "ballast").write_bytes(bytes(1_000_000))
        child = children("fill", disk / "s.db", "w1")
        assert "no space is left" in child.line()
        assert child.line() == "refused"
        (disk / "ballast").unlink()
        child.go()
        assert child.finish() == ["Applied", "True"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_read_only_disk(tmp_path):
    """A file on a disk that cannot be written is refused with the file's name and what to do."""
    from outlast.errors import StoreUnavailableError

    async def nothing(store):
        return store.describe()

    with small_disk(tmp_path / "disk", "size=4m") as disk:
        path = disk / "s.db"
        assert with_store(path, nothing) == str(path)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(StoreUnavailableError, match=r"s\.db cannot be written"):
            with_store(path, nothing)


def test_forked_child_is_refused(tmp_path):
    """A store that was opened before a fork says in the child what to do."""
    import warnings

    from outlast.errors import StoreUnavailableError

    async def main():
        store = await open_sqlite(tmp_path / "s.db", clock=ManualClock())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            try:
                store.renew(WorkerId("w1"))
            except StoreUnavailableError as error:
                os._exit(7 if "fork" in str(error) else 1)
            finally:
                os._exit(2)
        _, status = os.waitpid(child, 0)
        await store.close()
        return os.waitstatus_to_exitcode(status)

    assert asyncio.run(main()) == 7
