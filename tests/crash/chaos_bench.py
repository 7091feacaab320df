"""A fleet of worker processes, and what strikes it: a schedule of kills, stops and restarts that follows from a seed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import chaos_flow
from chaos_process import clock_of
from crash_bench import PATIENCE_SECONDS, go_on, is_stopped

SCRIPT = Path(__file__).parent / "chaos_process.py"
LEASE_SECONDS = 0.8
WHATS = ("kill", "kill", "freeze", "freeze", "hold", "end")
HOLDS = {"freeze": signal.SIGUSR1, "hold": signal.SIGUSR2}


@dataclass(frozen=True)
class Strike:
    """One blow.

    Args:
        at: Seconds after the beginning.
        slot: Which worker.
        what: `kill` (SIGKILL), `end` (SIGTERM), each followed by a new process; `freeze` (SIGSTOP, and SIGCONT after `seconds`), or
            `hold`: the same while it holds the file's write lock.
    """

    at: float
    slot: int
    what: Literal["kill", "end", "freeze", "hold"]
    seconds: float


def schedule(seed: int, seconds: float, slots: int) -> list[Strike]:
    """Return the blows of a test, about two a second: a worker is left alone for a moment after each."""
    chance = random.Random(seed)
    strikes: list[Strike] = []
    free = [0.8] * slots
    at = 0.0
    while (at := at + chance.uniform(0.05, 0.55)) < seconds:
        slot = chance.randrange(slots)
        what = chance.choice(WHATS)
        long = chance.random() < 0.8
        length = LEASE_SECONDS * (chance.uniform(1.5, 3.5) if long else chance.uniform(0.1, 0.6))
        if at < free[slot]:
            continue
        free[slot] = at + (length if what in HOLDS else 0.0) + 0.8
        strikes.append(Strike(round(at, 3), slot, what, round(length, 3)))
    return strikes


async def soon(
    happened: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS, step: float = 0.01
) -> Any:
    """Poll until `happened()` is true, while the other tasks go on."""
    end = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < end, f"{what}: not within {seconds:g} s"
        await asyncio.sleep(step)
    return found


class Fleet:
    """Worker processes on one file.

    Args:
        directory: Where the logs of workers and receiver lie.
        options: Of all workers.
        disk: Where the database lies; beside the logs by default.
    """

    script = SCRIPT

    def __init__(self, directory: Path, *options: str, disk: Path | None = None) -> None:
        self.directory = directory
        self.file = (disk or directory) / "agent.db"
        self.url = f"sqlite:///{self.file}"
        self.clock = clock_of(directory)
        self._options = options
        self._all: list[subprocess.Popen[bytes]] = []
        self.slots: list[subprocess.Popen[bytes]] = []

    @classmethod
    @contextlib.contextmanager
    def opened(cls, directory: Path, *options: str, disk: Path | None = None) -> Iterator[Fleet]:
        """Make a fleet, and end every process of it afterwards."""
        fleet = cls(directory, *options, disk=disk)
        environment = {
            chaos_flow.DIRECTORY: str(directory),
            chaos_flow.LOG: f"{fleet.file}-wal",
            chaos_flow.BALLAST: str(disk / "ballast") if disk else "",
        }
        with mock.patch.dict(os.environ, environment):
            try:
                yield fleet
            finally:
                for process in fleet._all:
                    process.kill()
                    process.wait()

    @property
    def log(self) -> Path:
        """What all workers wrote to standard error."""
        return self.directory / "worker.log"

    def launch(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a worker process; it may take a second until it works."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(self.script), self.url, *self._options, *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self._all.append(process)
        return process

    def is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether a process works, or has ended."""
        return process.poll() is not None or (self.directory / f"ready-{process.pid}").exists()

    async def start(self, count: int) -> None:
        """Start workers, one a slot, and wait until they work."""
        self.slots = [self.launch() for _ in range(count)]
        await soon(lambda: all(map(self.is_ready, self.slots)), "the workers work")

    async def strike(self, strike: Strike) -> None:
        """Do it, and see to it that the slot works again."""
        process = self.slots[strike.slot]
        if strike.what in HOLDS:
            await self.freeze(process, HOLDS[strike.what], strike.seconds)
            return
        if strike.what == "kill":
            process.kill()
        else:
            await soon(lambda: self.is_ready(process), "the worker works")
            process.terminate()
        status = await soon(lambda: process.poll() is not None and [process.returncode], "it ends")
        assert status == [-signal.SIGKILL if strike.what == "kill" else 0], self.log.read_text()
        self.slots[strike.slot] = self.launch()

    async def freeze(self, process: subprocess.Popen[bytes], how: int, seconds: float) -> None:
        """Let a process stand still for a while."""
        await self.stop(process, how)
        await asyncio.sleep(seconds)
        go_on(process)

    async def stop(self, process: subprocess.Popen[bytes], how: int) -> None:
        """Have a process stop itself, and wait until it stands still."""
        await soon(lambda: self.is_ready(process), "the worker works")
        process.send_signal(how)
        await soon(lambda: is_stopped(process), "the worker stands still")

    async def all_strikes(self, strikes: list[Strike]) -> None:
        """Strike by the schedule; blows at one worker follow each other."""
        begin = time.monotonic()

        async def at(slot: int) -> None:
            for strike in strikes:
                if strike.slot == slot:
                    await asyncio.sleep(max(0.0, begin + strike.at - time.monotonic()))
                    await self.strike(strike)

        await asyncio.gather(*map(at, range(len(self.slots))))

    async def end(self) -> None:
        """End all workers gracefully."""
        for process in self.slots:
            await soon(lambda process=process: self.is_ready(process), "the worker works")
            process.terminate()
        for process in self.slots:
            await soon(lambda process=process: process.poll() is not None, "the worker ends")
            assert process.returncode == 0, self.log.read_text()[-4000:]
