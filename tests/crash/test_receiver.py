"""Each declaration against a receiver in a process of its own, which counts, cuts connections, kills senders and is asked twice.

Invariants 3 and 4: what is idempotent or probed was applied exactly once under its key, what is neither at most once, with two workers,
whose processes die whenever the receiver says so.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import receiver_flow
from crash_bench import until

import outlast
from outlast.journal.entry import EffectIntended, Entry, from_row
from outlast.store.change import RunKey

HERE = Path(__file__).parent
RUNS = 4


class Scene:
    """A receiver, a database, and two workers, each of which is replaced when it has died."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.url = f"sqlite:///{folder / 'outlast.db'}"
        command = [sys.executable, str(HERE / "receiver_process.py"), str(seed)]
        self.receiver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.receiver.stdout is not None
        self.port = int(self.receiver.stdout.readline())
        self.workers: list[subprocess.Popen[bytes]] = []
        self.deaths = 0

    def work(self) -> None:
        """See to it that two workers live."""
        dead = [one for one in self.workers if one.poll() is not None]
        self.deaths += len(dead)
        self.workers = [one for one in self.workers if one not in dead]
        while len(self.workers) < 2:
            environment = {**os.environ, "RECEIVER_PORT": str(self.port)}
            command = [
                sys.executable,
                "-m",
                "outlast.cli",
                "worker",
                str(HERE / "receiver_flow.py"),
            ]
            command += ["--database", self.url, "--lease", "2s", "--idle", "100ms"]
            quiet = subprocess.DEVNULL
            self.workers.append(
                subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet)
            )

    def books(self) -> dict[str, dict[str, int]]:
        """Return what the receiver has counted."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/books") as answer:
            return json.loads(answer.read())

    def close(self) -> None:
        """End all processes."""
        for one in (*self.workers, self.receiver):
            one.kill()
            one.wait()
        assert self.receiver.stdout is not None
        self.receiver.stdout.close()


@pytest.fixture
def scene(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A receiver with the test's seed."""
    made = Scene(tmp_path, request.param)
    yield made
    made.close()


def asked(scene: Scene, work: Any) -> Any:
    """Return what a client is told."""

    async def ask() -> Any:
        async with outlast.connect(scene.url) as client:
            return await work(client)

    return asyncio.run(ask())


async def begin(scene: Scene) -> None:
    """Make the database and start the runs; nobody moves them yet."""
    app = outlast.open(scene.url, workflows=[])
    async with app:
        for number in range(RUNS):
            await app.start(receiver_flow.each(f"each {number}"), id=f"each-{number}")
            await app.start(receiver_flow.undone(f"undone {number}"), id=f"undone-{number}")


async def settle(scene: Scene, client: outlast.Client) -> bool:
    """Say truthfully what became of what is in doubt; return whether all runs have ended."""
    applied = scene.books()["applied"]
    for doubt in await client.runs.doubts():
        happened = applied.get(doubt.key, 0)
        outcome = {"applied": "found"} if happened else {"not_applied": True}
        await client.runs.resolve([doubt], reason="the receiver's books", **outcome)
    return all(one.status.closed for one in await client.runs.list(limit=100))


async def journals(client: outlast.Client) -> dict[str, list[Entry]]:
    """Return the journal of each run."""
    return {
        one.run_id: [
            from_row(row.row) for row in await client.store.journal(RunKey("default", one.run_id))
        ]
        for one in await client.runs.list(limit=100)
    }


SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 12))]


@pytest.mark.parametrize("scene", SEEDS, indirect=True)
def test_every_effect_happens_as_often_as_it_declares(scene: Scene) -> None:
    """And what was done inside a saga that raised was undone exactly once."""
    asyncio.run(begin(scene))

    def all_over() -> bool:
        scene.work()
        return asked(scene, lambda client: settle(scene, client))

    until(all_over, "all runs end", 90)
    books = scene.books()
    applied, fates = books["applied"], books["fates"]
    assert scene.deaths, "nobody was killed"
    assert set(fates) >= {"drop before", "drop after", "kill before", "kill after", "twice"}
    of_run = asked(scene, journals)
    intents = [one for log in of_run.values() for one in log if isinstance(one, EffectIntended)]
    assert len({one.key for one in intents}) == len(intents)
    assert set(applied) <= {one.key for one in intents}
    assert {applied.get(one.key, 0) for one in intents if one.name != "bare"} == {1}
    assert {applied.get(one.key, 0) for one in intents if one.name == "bare"} <= {0, 1}
    statuses = asked(scene, lambda client: client.runs.list(limit=100))
    ends = {one.run_id: str(one.status) for one in statuses}
    assert {end for run, end in ends.items() if run.startswith("undone")} == {"compensated"}
    assert {end for run, end in ends.items() if run.startswith("each")} == {"completed"}
    for run, log in of_run.items():
        undone = [
            one.compensates for one in log if isinstance(one, EffectIntended) and one.compensates
        ]
        assert undone == (["r:3", "r:2"] if run.startswith("undone") else [])
