"""What crash tests work with: worker processes, and looks at what they left behind.

Nothing here sleeps to let something happen: it polls for an event, until a deadline that is far away.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import apsw
import crash_flow
import msgspec

import outlast
from outlast.app import SystemClock, open_store
from outlast.client import RunDetail
from outlast.journal.entry import StampedRow, from_row
from outlast.store.change import RunKey
from outlast.store.protocol import LiveWorker, RunImage
from outlast.store.sqlite.store import open_sqlite

T = TypeVar("T")

SCRIPT = Path(__file__).parent / "worker_process.py"
PATIENCE_SECONDS = 40.0
OUTCOMES = {"step_completed", "step_failed", "effect_completed", "effect_failed", "effect_refused"}

ONCE = (
    OUTCOMES,
    {"effect_intended"},
    {"approval_requested"},
    {"approval_decided", "approval_expired"},
    {"timer_fired"},
)
"""Kinds of which one operation has at most one entry in all."""

ENDS = {"completed", "failed", "cancelled"}

CAUSES = {
    "effect_completed": "effect_intended",
    "effect_failed": "effect_intended",
    "effect_in_doubt": "effect_intended",
    "approval_decided": "approval_requested",
    "approval_expired": "approval_requested",
}
"""The entry that comes before another one of the same operation."""


def until(happened: Callable[[], T], what: str, seconds: float = PATIENCE_SECONDS) -> T:
    """Poll until `happened()` is true, and return what it gave."""
    end = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < end, f"{what}: not within {seconds:g} s"
        time.sleep(0.01)
    return found


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a file of JSON objects."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


@dataclass
class Bench:
    """One database, its workers and the log of what their bodies did.

    Args:
        url: Of the database; a file in the directory where none is given.
    """

    directory: Path
    environment: dict[str, str]
    url: str = ""

    def __post_init__(self) -> None:
        self.file = self.directory / "agent.db"
        self.url = self.url or f"sqlite:///{self.file}"
        self.processes: list[subprocess.Popen[bytes]] = []

    @classmethod
    @contextlib.contextmanager
    def opened(
        cls, directory: Path, environment: dict[str, str] | None = None, *, url: str = ""
    ) -> Iterator[Bench]:
        """Make a bench, and end every process of it afterwards."""
        bench = cls(directory, {crash_flow.DIRECTORY: str(directory), **(environment or {})}, url)
        try:
            yield bench
        finally:
            for process in bench.processes:
                process.kill()
                process.wait()
                assert process.stdout is not None
                process.stdout.close()

    def launch(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a worker process."""
        writes = str(self.directory / "writes.jsonl")
        return self._start([str(SCRIPT), self.url, "--writes", writes, *options])

    def command(self, module: Path) -> subprocess.Popen[bytes]:
        """Start `outlast worker` with a module, as a person would."""
        return self._start(["-m", "outlast.cli", "worker", str(module), "--idle", "30s"])

    def _start(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "OUTLAST_DATABASE_URL": self.url, **self.environment},
            )
        self.processes.append(process)
        return process

    def worker(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a worker process, and wait until it works."""
        process = self.launch(*options)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == b"ready\n", self.words()
        return process

    def finish(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the end of a process, and return its status."""
        try:
            return process.wait(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"a worker does not end:\n{self.words()}") from None

    @property
    def log(self) -> Path:
        """What all workers wrote to standard error."""
        return self.directory / "worker.log"

    def words(self) -> str:
        """Return the end of the log."""
        return self.log.read_text()[-4000:] if self.log.exists() else "(no log)"

    def writes(self, pid: int) -> list[str]:
        """Return the names of the store writes that a process made or was about to make."""
        return [one["name"] for one in self._written(pid) if "name" in one]

    def events(self, pid: int) -> list[str]:
        """Return the names of the store writes and of the calls of bodies, in the order in which they began."""
        return [
            one.get("name") or one["call"] for one in self._written(pid) if "verdicts" not in one
        ]

    def calls(self, pid: int, kind: str = "") -> list[dict[str, Any]]:
        """Return the calls of bodies that a process made or was about to make: `call`, `operation` and `key`."""
        calls = [one for one in self._written(pid) if "call" in one]
        return [one for one in calls if one["call"].startswith(kind)]

    def verdicts(self, pid: int) -> list[str]:
        """Return what the store said to a process, change by change."""
        return [verdict for one in self._written(pid) for verdict in one.get("verdicts", ())]

    def _written(self, pid: int) -> list[dict[str, Any]]:
        return [one for one in lines_of(self.directory / "writes.jsonl") if one["pid"] == pid]

    def received(self, body: str = "", label: str = "") -> list[dict[str, Any]]:
        """Return what the bodies logged."""
        found = lines_of(self.directory / "receiver.jsonl")
        return [one for one in found if body in ("", one["body"]) and label in ("", one["label"])]

    def ask(self, act: Callable[[outlast.Client], Awaitable[T]]) -> T:
        """Do something as a client: a process apart from every worker."""

        async def go() -> T:
            async with outlast.connect(self.url, create=True) as client:
                return await act(client)

        return asyncio.run(go())

    def start(self, call: outlast.Call[Any], run_id: str, **options: Any) -> None:
        """Start a run as a client; with the options of `Client.start`."""

        async def act(client: outlast.Client) -> None:
            await client.start(call, id=run_id, **options)

        self.ask(act)

    def result(self, run_id: str) -> Any:
        """Wait for the end of a run as a client."""
        return self.ask(
            lambda client: asyncio.wait_for(client.handle(run_id).result(), PATIENCE_SECONDS)
        )

    def detail(self, run_id: str) -> RunDetail:
        """Return how a run and its open operations stand."""
        return self.ask(lambda client: client.handle(run_id).detail())

    def image(self, run_id: str) -> RunImage | None:
        """Return all that is stored of a run."""
        return asyncio.run(_image(self.url, run_id))

    def rows(self, run_id: str) -> tuple[StampedRow, ...]:
        """Return a run's journal."""
        image = self.image(run_id)
        return image.rows if image else ()

    def left_behind(self, run_id: str) -> RunImage | None:
        """Return all that a killed process left of a run, from a copy: recovery is left to the next worker."""
        with tempfile.TemporaryDirectory(dir=self.directory) as folder:
            for path in self.directory.glob("agent.db*"):
                if path.is_file() and not path.name.endswith("-shm"):
                    shutil.copy(path, folder)
            if not (Path(folder) / "agent.db").exists():
                return None
            return asyncio.run(_image(f"sqlite:///{folder}/agent.db", run_id))

    def workers(self) -> list[LiveWorker]:
        """Return the registered workers."""

        async def look() -> list[LiveWorker]:
            store = await open_sqlite(self.file, clock=SystemClock())
            try:
                return await store.workers()
            finally:
                await store.close()

        return asyncio.run(look())

    def worker_id(self, process: subprocess.Popen[bytes]) -> str:
        """Return the id under which a process works at present, or an empty string."""
        found = [
            str(one.row.worker) for one in self.workers() if one.row.pid == process.pid and one.live
        ]
        return found[-1] if found else ""

    def check_intact(self) -> None:
        """Let SQLite look at every page."""
        connection = apsw.Connection(str(self.file))
        try:
            assert connection.pragma("integrity_check") == "ok"
            assert list(connection.execute("PRAGMA foreign_key_check")) == []
        finally:
            connection.close()


async def _image(url: str, run_id: str) -> RunImage | None:
    store = await open_store(url)
    try:
        return await store.load(RunKey("default", run_id))
    finally:
        await store.close()


def is_stopped(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process stands still because of SIGSTOP."""
    words = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return words[0] == "T"


def go_on(process: subprocess.Popen[bytes]) -> None:
    """Let a stopped process continue."""
    process.send_signal(signal.SIGCONT)


def check_journal(
    rows: Sequence[StampedRow], end: str = "completed", *, overtaken: bool = False
) -> None:
    """It is sound, and its one end, the last entry, is this one; see `check_rows`."""
    check_rows(rows, overtaken=overtaken)
    kinds = [one.row.kind for one in rows]
    assert [kind for kind in kinds if kind in ENDS] == [end] == kinds[-1:], kinds


def check_rows(rows: Sequence[StampedRow], *, overtaken: bool = False) -> None:
    """What may happen once happened once, and after its cause; numbers have no gaps, turns and times never go back; no alarm.

    Args:
        overtaken: Workers stood still for longer than their lease: an attempt may have returned after another one, and the same.
    """
    assert [one.row.seq for one in rows] == list(range(len(rows)))
    kinds = [one.row.kind for one in rows]
    assert kinds[:2] == ["started", "taken"][: len(kinds)], kinds
    assert kinds.count("taken") <= 1
    alarms = [from_row(one.row) for one in rows if one.row.kind == "alarm_raised"]
    known = _results(rows) if overtaken else ()
    strange = [one for one in alarms if _result_of(one) not in known]
    assert not strange, (strange, kinds)
    turns = [one.row.turn for one in rows]
    assert turns == sorted(turns)
    times = [one.at for one in rows]
    assert times == sorted(times)
    for once in ONCE:
        operations = [one.row.operation for one in rows if one.row.kind in once]
        assert len(operations) == len(set(operations)), f"twice: {once} {operations}"
    first = {(one.row.kind, one.row.operation): one.row.seq for one in reversed(rows)}
    for kind, cause in CAUSES.items():
        for one in rows:
            if one.row.kind == kind:
                begun = first.get((cause, one.row.operation), len(rows))
                assert begun < one.row.seq, f"{kind} without {cause}"


def _results(rows: Sequence[StampedRow]) -> list[tuple[Any, Any]]:
    found = [from_row(one.row) for one in rows if one.row.kind == "effect_completed"]
    return [(one.operation, msgspec.json.decode(one.value)) for one in found]


def _result_of(alarm: Any) -> tuple[Any, Any]:
    """Return what an attempt has returned that was overtaken."""
    outcome = msgspec.json.decode(alarm.detail).get("outcome")
    if alarm.what != "late_outcome" or not isinstance(outcome, dict):
        return alarm.what, None
    return outcome.get("operation"), outcome.get("value")


def settled(rows: tuple[StampedRow, ...]) -> set[str]:
    """Return the names of the steps and effects whose outcome is recorded."""
    return {one.row.name for one in rows if one.row.kind in OUTCOMES}
