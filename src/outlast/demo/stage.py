"""The stage of the demo: repository, forge double and worker processes, and what happened there. No terminal here.

The play: a worker moves the run; when the pull request was created and before anybody could know, the worker is killed; a
second worker finds out, and goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import outlast
from outlast.client import JournalEntry, RunHandle
from outlast.demo import agent
from outlast.demo.forge_process import ForgeProcess
from outlast.demo.osv import read_record
from outlast.demo.patch import Finding
from outlast.demo.repository import MAIN, git, make_remote
from outlast.demo.setting import Setting
from outlast.journal.entry import EffectCompleted
from outlast.journal.parse import read

REPO = "outlast-demo/ledger"
SAMPLE_DATE = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
BODIES = (
    "plan",
    "prepare_patch",
    "push_branch",
    "open_pull_request",
    "find_pull_request",
    "record_outcome",
)


@dataclass(frozen=True, slots=True)
class Play:
    """What is to be shown.

    Args:
        osv: An OSV record; the shipped one by default.
        repository: A git repository or a directory; the shipped sample by default. It is copied, never changed.
        package: Which package of the record, where it names several.
        probe: Whether the probe really asks.
        kill: Whether the first worker is killed.
    """

    osv: Path | None = None
    repository: Path | None = None
    package: str = ""
    expires_in: timedelta = timedelta(hours=72)
    probe: bool = True
    kill: bool = True


@dataclass(slots=True)
class Report:
    """What happened."""

    status: str = ""
    reason: str = ""
    pull_requests: int = 0
    create_requests: int = 0
    killed: dict[str, Any] | None = None
    bodies: dict[str, int] = field(default_factory=dict[str, int])
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    cut_off: dict[str, int] = field(default_factory=dict[str, int])
    url: str = ""

    @property
    def good(self) -> bool:
        """Exactly one pull request, asked for exactly once, and the run says so."""
        return self.status == "completed" and self.pull_requests == 1 and self.create_requests == 1


class Stage:
    """Everything of one demo, in one directory."""

    def __init__(self, play: Play, forge: ForgeProcess, finding: Finding, setting: Setting) -> None:
        self.directory = setting.directory
        self.play = play
        self.forge = forge
        self.finding = finding
        self.setting = setting
        self.killed: dict[str, Any] | None = None
        self.url = f"sqlite:///{self.directory / 'agent.db'}"
        self._worker: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextlib.contextmanager
    def build(cls, directory: Path, play: Play) -> Generator[Stage]:
        """Make the repository, start the forge, and take all of it down at the end."""
        directory.mkdir(parents=True, exist_ok=True)
        bare = directory / "remote.git"
        _make_remote(play, bare)
        document = (
            play.osv.read_bytes() if play.osv else _data("GHSA-wwqv-p2pp-99h5.json").read_bytes()
        )
        finding = Finding(
            record=read_record(document),
            repo=REPO,
            remote=str(bare),
            base=_base(bare),
            package=play.package,
        )
        token = f"ghs_{secrets.token_hex(18)}"
        with ForgeProcess.start(directory / "forge", repo=REPO, bare=bare, token=token) as forge:
            stage = cls(play, forge, finding, Setting(directory, forge.url, token, play.probe))
            try:
                yield stage
            finally:
                stage.stop_worker()

    def start_worker(self) -> int:
        """Start a worker process and return its id."""
        with (self.directory / "worker.log").open("ab") as log:
            self._worker = subprocess.Popen(
                [sys.executable, "-m", "outlast.demo.work", self.url],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.setting.environment()},
            )
        return self._worker.pid

    def kill_worker(self) -> int:
        """Kill the worker with SIGKILL, and return its id."""
        assert self._worker is not None
        self._worker.kill()
        self._worker.wait()
        self._close_input()
        self.killed = {"pid": self._worker.pid, "signal": "SIGKILL"}
        return self._worker.pid

    def stop_worker(self) -> None:
        """Ask the worker to end, and wait for it."""
        if self._worker is None:
            return
        self._close_input()
        try:
            self._worker.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self._worker.kill()
            self._worker.wait()

    def worker_died(self) -> bool:
        """Whether the worker ended by itself."""
        return self._worker is not None and self._worker.poll() is not None

    async def start_run(self, client: outlast.Client) -> RunHandle[agent.Outcome]:
        """Start the run; its id comes from the finding, so that one finding is fixed once."""
        call = agent.fix(self.finding, self.play.expires_in)
        return await client.start(call, id=f"{self.finding.id}:{REPO}")

    async def created(self) -> bool:
        """Return whether the forge holds back the answer to a create request, after waiting a second for one."""
        return bool(await asyncio.to_thread(self.forge.held, wait=1))

    def report(self, status: outlast.RunStatus, journal: list[JournalEntry]) -> Report:
        """Return what happened: from the run, from the bodies' own tally, and from the forge's own log."""
        tally = self.setting.bodies()
        counts = Counter(line["body"] for line in tally if line["event"] == "began")
        ends = Counter(line["body"] for line in tally if line["event"] == "ended")
        seconds: Counter[str] = Counter()
        for line in tally:
            seconds[line["body"]] += line["seconds"]
        pulls = [one for one in self.forge.pulls() if one["state"] == "open"]
        return Report(
            status=str(status.status),
            reason=status.reason or str(status.waits.get("in_doubt") or ""),
            pull_requests=len(pulls),
            create_requests=self.forge.create_requests(),
            killed=self.killed,
            bodies={name: counts[name] for name in BODIES},
            seconds={name: round(seconds[name], 3) for name in BODIES},
            cut_off={
                name: counts[name] - ends[name] for name in BODIES if counts[name] > ends[name]
            },
            url=_url(journal),
        )

    def _close_input(self) -> None:
        if self._worker is not None and self._worker.stdin is not None:
            self._worker.stdin.close()


def _url(journal: list[JournalEntry]) -> str:
    """Return the address of the pull request that the run recorded."""
    for one in journal:
        if isinstance(one.entry, EffectCompleted) and one.entry.name == "open_pull_request":
            return str(read(bytes(one.entry.value), "the pull request")["url"])
    return ""


def _make_remote(play: Play, bare: Path) -> None:
    if play.repository is None:
        with as_file(_data("sample")) as sample:
            make_remote(sample, bare, when=SAMPLE_DATE)
    elif (play.repository / ".git").exists() or (play.repository / "HEAD").is_file():
        git(
            "clone",
            "--quiet",
            "--bare",
            "--no-hardlinks",
            "--",
            str(play.repository.resolve()),
            str(bare),
        )
    else:
        make_remote(play.repository, bare, when=SAMPLE_DATE)


def _base(bare: Path) -> str:
    """Return the remote's own main branch."""
    return git("symbolic-ref", "--short", "HEAD", cwd=bare).strip() or MAIN


def _data(name: str) -> Any:
    return files("outlast.demo") / "data" / name
