"""`outlast doctor`: a healthy database, and each thing that can be wrong with one."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import namedtuple
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

import outlast
from outlast.app import SystemClock
from outlast.cli import doctor
from outlast.store.sqlite import checkup
from outlast.worker.report import Reporter

from .conftest import World


@outlast.workflow
async def seen_flow() -> int:
    """Be seen."""
    return 1


def _findings(world: World) -> dict[str, dict[str, Any]]:
    document = json.loads(world.cli("doctor", "--json").stdout)
    return {one["check"]: one for one in document["findings"]}


def test_healthy(world: World) -> None:
    """Everything is looked at; warnings do not fail."""
    world.file.chmod(0o600)
    result = world.cli("doctor", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["healthy"] is True
    assert document["database"] == str(world.file)
    verdicts = {one["check"]: one["verdict"] for one in document["findings"]}
    assert verdicts == {
        "database": "ok", "boot_clock": "ok", "sqlite": "ok", "permissions": "ok", "disk": "ok",
        "file_system": "ok", "locks": "ok", "schema": "ok", "integrity": "ok", "clock": "ok",
        "blocked": "warn", "in_doubt": "warn", "workers": "warn", "queues": "ok", "requests": "ok", "decisions": "ok", "timeline": "ok",
    }  # fmt: skip
    assert all(one["hint"] for one in document["findings"] if one["verdict"] != "ok")


def test_lines_say_what_to_do(world: World) -> None:
    """Each line has its verdict, and those that are not ok a next step."""
    text = world.cli("doctor").stdout
    assert f"ok   database     {world.file}" in text
    assert "warn in_doubt     effects in doubt: 1" in text
    assert "nobody moves the open runs of flow" in text
    assert "→ start one: `outlast worker MODULE`" in text


def test_figures(world: World) -> None:
    """What waits is counted, in JSON and in lines; runs that have ended are not."""
    document = json.loads(world.cli("doctor", "--json").stdout)
    figures = document["figures"]
    assert figures["runs"] == {"ready": 0, "running": 0, "waiting": 4, "blocked": 1, "paused": 0}
    assert figures["blocked"] == {"in doubt": 1}
    assert (figures["in_doubt"], figures["approvals"]["count"]) == (1, 1)
    assert figures["approvals"]["oldest_seconds"] > 0
    assert document["workers"] == []
    lines = world.cli("doctor").stdout
    assert "     open runs    waiting 4, blocked 1\n" in lines
    assert "     blocked      in doubt 1\n" in lines
    assert "     in doubt     1 of effects\n" in lines
    assert "     approvals    1, the oldest for 0:" in lines
    assert "outbox" not in lines


def test_workers_are_seen(world: World) -> None:
    """Who works there, with what it has said of itself; what cannot be read of that is left out."""

    async def work() -> tuple[dict[str, Any], str]:
        async with outlast.open(world.url, workflows=[seen_flow]) as app:
            silent = await asyncio.to_thread(world.cli, "doctor", "--json")
            assert json.loads(silent.stdout)["workers"][0]["report"] is None
            assert await app.run(seen_flow(), id="seen") == 1
            await Reporter(app.store, app.worker, app._tally).report()
            told = await asyncio.to_thread(world.cli, "doctor", "--json")
            lines = await asyncio.to_thread(world.cli, "doctor")
            await app.store.report(app.worker.id, b"{")
            damaged = await asyncio.to_thread(world.cli, "doctor", "--json")
            assert json.loads(damaged.stdout)["workers"][0]["report"] is None
            return json.loads(told.stdout), lines.stdout

    document, lines = asyncio.run(work())
    assert document["figures"]["workers_live"] == 1
    (worker,) = document["workers"]
    assert worker["live"] is True
    assert worker["workflows"] == ["seen_flow"]
    assert worker["lease_seconds"] == 15
    numbers = worker["report"]["numbers"]
    assert numbers["counts"]["outlast.run.ended"] == {"completed": 1}
    assert numbers["measures"]["outlast.store.commit.duration"]["count"] >= 2
    assert f"worker       {worker['worker']}: runs " in lines
    assert "99 of 100 within " in lines


def test_no_database(world: World) -> None:
    """A file that is not there fails, and is not made."""
    world.file.unlink()
    result = world.cli("doctor")
    assert result.exit_code == 1
    assert "there is no database at" in result.stdout
    assert not world.file.exists()


def test_damaged(world: World) -> None:
    """A damaged file fails with what to do, and no traceback."""
    data = bytearray(world.file.read_bytes())
    for start in range(4096, len(data), 4096):
        data[start : start + 64] = b"\xff" * 64
    world.file.write_bytes(bytes(data))
    result = world.cli("doctor", "--json")
    assert result.exit_code == 1
    failed = [one for one in json.loads(result.stdout)["findings"] if one["verdict"] == "fail"]
    assert failed
    assert any("restore a backup" in one["hint"] for one in failed)


def test_newer_schema(world: World) -> None:
    """A file that is prepared for a newer version works; one that it has finished fails and says so."""
    newer = "INSERT INTO migration (number, phase, subject, checksum) VALUES (?, ?, 'x', 'y')"
    connection = apsw.Connection(str(world.file))
    connection.execute(newer, (998, "pre"))
    found = _findings(world)
    assert (found["schema"]["verdict"], found["database"]["verdict"]) == ("warn", "ok")
    assert found["schema"]["hint"] == "deploy the newer version"
    connection.execute(newer, (999, "post"))
    connection.close()
    found = _findings(world)
    assert found["schema"]["verdict"] == "fail"
    assert found["schema"]["hint"] == "upgrade Outlast here"
    assert found["database"]["verdict"] == "fail"


def test_former_schema(world: World) -> None:
    """A file that a former version has left is no failure: a worker brings it up to date."""
    connection = apsw.Connection(str(world.file))
    connection.execute(
        "DROP TABLE request; DROP TABLE task; ALTER TABLE worker DROP COLUMN queues; DELETE FROM migration WHERE subject IN ('tasks', 'requests')"
    )
    connection.close()
    found = {one.check: one.verdict for one in checkup.examine(str(world.file), SystemClock())}
    assert found["schema"] == "warn"
    assert "fail" not in found.values()


def test_queue_that_nobody_serves(world: World) -> None:
    """What waits for a worker of a queue is told, since when, and what to type; not what is offered later, is with somebody, or is held."""
    connection = apsw.Connection(str(world.file))
    row = (
        "INSERT INTO task (tenant, run_id, operation, generation, attempt, queue, name, worker, due, since, set_at, held, arguments)"
        " VALUES ('default', 'r', ?1, 1, 1, ?2, 'render', ?3, ?4, ?4, 0, ?5, x'')"
    )
    later = 4_000_000_000_000_000
    for operation, queue, worker, due, held in (
        ("r:1", "gpu", None, 1_700_000_001_000_000, 0),
        ("r:2", "gpu", None, 1_700_000_000_000_000, 0),
        ("r:3", "gpu", None, later, 0),
        ("r:4", "tpu", None, later, 0),
        ("r:5", "cpu", "w", 0, 0),
        ("r:6", "gpu", None, 0, 1),
    ):
        connection.execute(row, (operation, queue, worker, due, held))
    connection.close()
    found = _findings(world)["queues"]
    assert found["verdict"] == "warn"
    assert found["text"] == (
        "2 steps wait for a worker of queue 'gpu' since 2023-11-14 22:13:20 UTC, and nobody serves it"
    )
    assert found["hint"] == "start one: `outlast worker MODULE --queue gpu`"


def test_requests_in_doubt(world: World) -> None:
    """How many nobody has ended is told, of which tenant, and what to type; not those that are held, or have ended."""
    row = (
        "INSERT INTO request (tenant, request_id, fingerprint, token, state, started_at, held_until, keep)"
        " VALUES (?1, ?2, 'f', 't', ?3, 0, ?4, 1)"
    )
    later = 4_000_000_000_000_000
    connection = apsw.Connection(str(world.file))
    connection.execute(row, ("default", "a", "running", 1))
    connection.execute(row, ("default", "b", "running", later))
    connection.execute(row, ("default", "c", "done", 1))
    found = _findings(world)["requests"]
    assert (found["verdict"], found["text"]) == ("warn", "requests in doubt: 1")
    assert found["hint"].startswith("`outlast requests list --state in-doubt`")
    connection.execute(row, ("acme", "a", "running", 1))
    connection.close()
    found = _findings(world)["requests"]
    assert found["text"] == "requests in doubt: 2 (1 of tenant acme, 1 of tenant default)"
    assert "--tenant" in found["hint"]


@pytest.mark.parametrize(("mode", "verdict"), [(0o600, "ok"), (0o644, "warn"), (0o666, "fail")])
def test_permissions(world: World, mode: int, verdict: str) -> None:
    """A file that others may read warns, one that others may write fails."""
    world.file.chmod(mode)
    assert _findings(world)["permissions"]["verdict"] == verdict


def test_times_in_the_future(world: World) -> None:
    """A wall clock behind what is stored is told."""
    clock = SystemClock()

    class Behind(SystemClock):
        def now(self) -> Any:
            return clock.now() - timedelta(days=1)

    found = {one.check: one for one in checkup.examine(str(world.file), Behind())}
    assert found["clock"].verdict == "warn"
    assert "future" in found["clock"].text


@pytest.mark.parametrize(
    ("version", "verdict"),
    [("3.51.2", "fail"), ("3.51.3", "ok"), ("3.54.1", "ok"), ("3.9.99", "fail")],
)
def test_sqlite_version(version: str, verdict: str) -> None:
    """Versions are compared by number."""
    assert [one.verdict for one in checkup.sqlite_version(version)] == [verdict]


@pytest.mark.parametrize(
    ("free", "verdict"), [(1 << 20, "fail"), (500 << 20, "warn"), (5 << 30, "ok")]
)
def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, verdict: str) -> None:
    """Little space warns, next to none fails."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(free, 0, free))
    assert [one.verdict for one in checkup.free_disk(tmp_path / "x.db")] == [verdict]


def test_locks_that_do_not_exclude(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two can hold one lock, the death of a worker cannot be proved."""
    monkeypatch.setattr(checkup.fcntl, "flock", lambda *_: None)
    assert [one.verdict for one in checkup.locks(tmp_path / "x.db")] == ["fail"]


def test_wall_clock_that_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wall clock that moves otherwise than the boot clock warns."""
    days = iter(range(10))

    class Jumping(SystemClock):
        def now(self) -> Any:
            return super().now() + timedelta(days=next(days))

    monkeypatch.setattr(doctor, "SystemClock", Jumping)
    assert [one.verdict for one in doctor.clocks()] == ["warn"]


def test_live_worker_is_seen(world: World) -> None:
    """With a worker for the workflow, nothing is said to be unattended."""
    worker = world.worker()
    try:
        world.until(lambda: _findings(world)["workers"]["verdict"] == "ok")
    finally:
        worker.terminate()
        worker.communicate(timeout=30)
