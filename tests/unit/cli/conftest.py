"""A database in which runs of every kind stand, made once by a real worker; each test gets a copy."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import outlast
from outlast.app import SystemClock, open_store
from outlast.cli.main import app
from outlast.client import RunStatus
from outlast.journal.asking import Rung, Terms

# What asks people is made by the helper of the client's tests.
sys.path.insert(0, str(Path(__file__).parent.parent / "client"))

AGENT = """
from datetime import timedelta
import outlast

go = outlast.Signal("go", str)

@outlast.step
async def flaky() -> int:
    raise ConnectionError("no route\\x1b[31m \\u202eback")

@outlast.effect(start_to_close_timeout=timedelta(seconds=0.1), settle=timedelta(0))
async def pay(amount: int) -> str | None:
    raise ConnectionError("cut off")

@outlast.effect(idempotent=True)
async def ship(place: str) -> str:
    return "shipped"

@outlast.workflow
async def flow(kind: str) -> str:
    match kind:
        case "signal":
            return await outlast.receive(go)
        case "timer":
            await outlast.sleep(3600)
        case "retry":
            await flaky()
        case "doubt":
            return str(await pay(5))
        case "approval":
            subject = {"title": "fix \\u202eevil", "diff": "--- a\\n+++ b\\n-old\\n+new\\u200b\\x1b[2J\\n"}
            await outlast.approval(subject, covers=[ship("here")], role="boss", expires_in=timedelta(hours=1))
            return await ship("here")
        case "bad":
            raise RuntimeError("no good\\x1b[31m")
    return "done"
"""
START = """
import asyncio, sys, agent, outlast

async def main():
    async with outlast.connect(create=True) as client:
        for kind in sys.argv[1:]:
            await client.start(agent.flow(kind), id=kind)

asyncio.run(main())
"""
STANDING = {
    "signal": "waiting",
    "timer": "waiting",
    "retry": "waiting",
    "doubt": "blocked",
    "approval": "waiting",
    "bad": "failed",
    "plain": "completed",
}


class World:
    """A folder with code and a database.

    Args:
        folder: Holds `agent.py` and, later, `outlast.db`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "outlast.db"
        self.url = f"sqlite:///{self.file}"
        self.environment = {**os.environ, "OUTLAST_DATABASE_URL": self.url, "COLUMNS": "200"}

    def start(self, *kinds: str) -> None:
        """Start a run of each kind, under the kind as id."""
        command = [sys.executable, "start.py", *kinds]
        subprocess.run(command, cwd=self.folder, env=self.environment, check=True, timeout=60)

    def worker(self, *options: str) -> subprocess.Popen[str]:
        """Start a worker on the folder's agent."""
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "outlast.cli",
                "worker",
                "agent.py",
                "--idle",
                "100ms",
                *options,
            ],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def status(self, run: str) -> RunStatus:
        """Return where a run stands."""

        async def ask() -> RunStatus:
            async with outlast.connect(self.url, create=False) as client:
                return await client.handle(run).status()

        return asyncio.run(ask())

    def until(self, true: Callable[[], bool]) -> None:
        """Wait until something holds; fail after a long time."""
        deadline = time.monotonic() + 30
        while not true():
            assert time.monotonic() < deadline, "it did not become so"
            time.sleep(0.05)

    def cli(self, *words: str) -> Result:
        """Run a command in this process."""
        return CliRunner(env={"OUTLAST_DATABASE_URL": self.url}).invoke(app, list(words))


@pytest.fixture(autouse=True)
def _no_code_stays() -> Iterator[None]:
    """Forget the code that a command has loaded: another test has other code of that name."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(tempfile.gettempdir()):
            del sys.modules[name]


def write_code(folder: Path) -> None:
    """Put the agent and its starter into a folder."""
    (folder / "agent.py").write_text(AGENT, encoding="utf-8")
    (folder / "start.py").write_text(START, encoding="utf-8")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the database once."""
    folder = tmp_path_factory.mktemp("world")
    write_code(folder)
    world = World(folder)
    world.start(*STANDING)
    worker = world.worker()
    try:
        for run, status in STANDING.items():
            world.until(lambda run=run, status=status: world.status(run).status == status)
        worker.send_signal(signal.SIGTERM)
        out, error = worker.communicate(timeout=30)
    finally:
        worker.kill()
    assert worker.returncode == 0, error
    assert str(world.file) in out
    return folder


@pytest.fixture
def world(made: Path, tmp_path: Path) -> Iterator[World]:
    """Return a copy of the made world."""
    folder = tmp_path / "copy"
    shutil.copytree(made, folder)
    yield World(folder)


@pytest.fixture
def asking(tmp_path: Path) -> World:
    """Return a database in which runs ask, without a worker: for approvals that may be edited, or not, or by two; and one a question."""
    from asked_bench import Asked, putting

    folder = tmp_path / "asking"
    folder.mkdir()
    world = World(folder)

    async def make() -> None:
        clock = SystemClock()
        store = await open_store(world.url)
        asked = Asked(store, clock)  # type: ignore[arg-type]  # its clock is not moved
        terms = Terms("treasurer", timedelta(hours=1), quorum=2, edits="yes", four_eyes=True)
        facts = {
            "preconditions": {"head": {"step": "look", "arguments": {}, "value": "abc\x1b[31m"}}
        }
        await asked.ask(
            putting(asked, terms=terms, more=facts, requesters=("zoe\u202e",)), name="edit"
        )
        await asked.ask(putting(asked, schema={"type": "integer"}), name="question")
        hour = timedelta(hours=1)
        rungs = (Rung("cfo", 2 * hour), Rung("owner", 3 * hour))
        strict = Terms("clerk", hour, edits="second", escalate=rungs, remind=(hour / 2,))
        await asked.ask(putting(asked, terms=Terms("clerk", hour)), name="fixed")
        await asked.ask(putting(asked, terms=strict), name="second")
        await store.close()

    asyncio.run(make())
    return world
