"""`outlast worker` as a real process: what it prints, how it stops, what it refuses."""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import outlast
from outlast.cli.worker import _stop_on_signals
from outlast.store.change import WorkerRow

from .conftest import World, write_code

SLOW = """
import asyncio, outlast

@outlast.step
async def wait() -> None:
    print("begun", flush=True)
    await asyncio.sleep(600)

@outlast.workflow
async def flow(kind: str) -> None:
    await wait()
"""


REMOTE = """
import outlast

@outlast.step(queue="gpu")
def render(number: int) -> int:
    return number * 2
"""
ASKING = (
    REMOTE
    + """
@outlast.workflow
async def flow(kind: str) -> int:
    return await render(len(kind))
"""
)


@pytest.fixture
def empty(tmp_path: Path) -> World:
    """Return a folder with code and no database."""
    write_code(tmp_path)
    return World(tmp_path)


@pytest.fixture
def workers() -> Iterator[list[subprocess.Popen[str]]]:
    """Return a list; what is in it is killed at the end."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for one in started:
        one.kill()
        one.communicate()


def _line(process: subprocess.Popen[str]) -> str:
    """Return the next line that a process prints; fail when none comes."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        assert selector.select(timeout=30), "the process prints nothing"
    return process.stdout.readline().rstrip("\n")


def test_prints_file_workflows_and_id(empty: World, workers: list[subprocess.Popen[str]]) -> None:
    """It makes the database and says where; SIGTERM ends it with status 0."""
    process = empty.worker("--lease", "5s")
    workers.append(process)
    empty.until(lambda: empty.file.exists() and bool(_live(empty)))
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert lines["database"] == str(empty.file)
    assert lines["workflows"] == "flow"
    assert f"-{process.pid}-" in lines["worker"]
    assert _live(empty) == []


def test_moves_runs_that_commands_touch(world: World, workers: list[subprocess.Popen[str]]) -> None:
    """Messages, decisions, resolutions and cancels given at the command line bring the runs to their ends."""
    seen = world.cli("approvals", "show", "approval").stdout.split()[-1]
    for words in (
        ("runs", "send", "signal", "go", '"now"'),
        ("approvals", "approve", "approval", "--hash", seen),
        ("runs", "resolve", "doubt", "--applied", "null", "--reason", "looked it up"),
        ("runs", "cancel", "timer"),
    ):
        assert world.cli(*words).exit_code == 0
    workers.append(world.worker())
    for run, status in (
        ("signal", "completed"), ("approval", "completed"), ("doubt", "completed"), ("timer", "cancelled"),
    ):  # fmt: skip
        world.until(lambda run=run, status=status: world.status(run).status == status)
    journal = world.cli("runs", "journal", "doubt").stdout
    assert "looked it up" in journal
    assert '"value": null' in journal


def test_second_signal_stops_at_once(empty: World, workers: list[subprocess.Popen[str]]) -> None:
    """While an attempt is given time to end, the same signal again ends the process."""
    (empty.folder / "agent.py").write_text(SLOW, encoding="utf-8")
    empty.start("slow")
    process = empty.worker()
    workers.append(process)
    lines = [_line(process)]
    while lines[-1] != "begun":
        lines.append(_line(process))
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "stopping" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=5)
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("nowhere.py", "there is no file"),
        ("no_such_module", "there is no module 'no_such_module'"),
        ("json", "declare no workflow"),
    ],
)
def test_code_that_is_not_there(empty: World, argument: str, words: str) -> None:
    """A wrong name is an error with a hint, and makes no database."""
    done = _once(empty, "worker", argument)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not empty.file.exists()


def test_code_in_a_file_without_its_suffix_is_refused(empty: World) -> None:
    """The error says what the file is to be called."""
    (empty.folder / "agentfile").write_text("import outlast\n", encoding="utf-8")
    done = _once(empty, "worker", "agentfile")
    assert (done.returncode, done.stdout) == (1, "")
    assert "agentfile is not named as a file of Python code" in done.stderr
    assert "ends in .py" in done.stderr


def test_error_inside_the_code_keeps_its_traceback(empty: World) -> None:
    """What fails while the author's module is imported is theirs to see."""
    (empty.folder / "agent.py").write_text("import no_such_thing\n", encoding="utf-8")
    done = _once(empty, "worker", "agent")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "no_such_thing" in done.stderr
    assert "site-packages" not in done.stderr
    assert done.stderr.count("File ") == 1


def test_code_that_does_not_parse_is_shown_with_its_line(empty: World) -> None:
    """A syntax error is the author's line and the error, and nothing of what imported it."""
    (empty.folder / "agent.py").write_text("import outlast\ndef f(:\n", encoding="utf-8")
    done = _once(empty, "worker", "agent.py")
    assert done.returncode == 1
    assert "SyntaxError" in done.stderr
    assert "agent.py" in done.stderr
    assert done.stderr.count("File ") == 1
    assert not empty.file.exists()


@pytest.mark.parametrize(
    ("second", "after", "ends"),
    [
        (signal.SIGTERM, 0.1, False),
        (signal.SIGTERM, 1.1, True),
        (signal.SIGINT, 0.1, True),
    ],
)
def test_signals_close_together_are_one(
    monkeypatch: pytest.MonkeyPatch, second: signal.Signals, after: float, *, ends: bool
) -> None:
    """`timeout` tells the process and its group at once: only a later signal, or Ctrl-C again, ends the process."""
    told: dict[int, Callable[..., None]] = {}
    ended: list[int] = []
    now = 0.0

    async def main() -> None:
        nonlocal now
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda: now)
        monkeypatch.setattr(
            loop, "add_signal_handler", lambda number, call, *args: told.update({number: call})
        )
        monkeypatch.setattr(os, "_exit", ended.append)
        stop = _stop_on_signals()
        told[signal.SIGTERM](signal.SIGTERM)
        assert stop.is_set()
        now = after
        told[second](second)

    asyncio.run(main())
    assert ended == ([128 + second] if ends else [])


def test_start_is_said_once_and_only_outlast_is_verbose(
    empty: World, workers: list[subprocess.Popen[str]]
) -> None:
    """What standard output says is not logged again; `-v` opens Outlast's log and nobody else's; times are those of all commands."""
    empty.start("timer")
    process = empty.worker("-v")
    workers.append(process)
    empty.until(lambda: empty.status("timer").status == "waiting")
    process.send_signal(signal.SIGTERM)
    out, error = process.communicate(timeout=30)
    assert out.count(str(empty.file)) == 1
    assert str(empty.file) not in error
    assert "ready for" not in error
    assert "asyncio" not in error
    assert " UTC INFO outlast.worker: run timer: taken up" in error


def test_bad_lease(empty: World) -> None:
    """A length of time that is none is a usage error."""
    done = _once(empty, "worker", "agent.py", "--lease", "soon")
    assert done.returncode == 2
    assert "no length of time" in done.stderr
    short = _once(empty, "worker", "agent.py", "--lease", "10ms")
    assert short.returncode == 1
    assert (
        "a lease of 0.01 seconds is too short: it is from 1 second to 30 days long" in short.stderr
    )
    assert not empty.file.exists()


def test_log_does_not_direct_the_terminal(
    empty: World, workers: list[subprocess.Popen[str]]
) -> None:
    """What a remote system wrote is escaped in the worker's log."""
    empty.start("retry")
    process = empty.worker()
    workers.append(process)
    assert process.stderr is not None
    lines: list[str] = []
    while not any("flaky (r:1) failed" in line for line in lines):
        lines.append(process.stderr.readline())
    assert "\\u001b[31m \\u202eback" in lines[-1]


def _live(world: World) -> list[str]:
    return [row.worker for row in _rows(world)]


def _rows(world: World) -> list[WorkerRow]:
    async def ask() -> list[WorkerRow]:
        async with outlast.connect(world.url, create=False) as client:
            return [one.row for one in await client.store.workers() if one.live]

    try:
        return asyncio.run(ask())
    except outlast.StoreUnavailableError:
        return []


def _once(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "outlast.cli", *words],
        cwd=world.folder,
        env={**world.environment, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_worker_of_a_queue_needs_no_workflow(
    empty: World, workers: list[subprocess.Popen[str]]
) -> None:
    """One process has the workflow, another one the step: the run ends; what each of them does is printed."""
    (empty.folder / "agent.py").write_text(ASKING)
    empty.start("abc")
    workers.append(empty.worker())
    empty.until(lambda: "queue 'gpu'" in empty.cli("runs", "explain", "abc").stdout)
    told = empty.cli("runs", "explain", "abc").stdout
    assert "waits for a worker of queue 'gpu' since" in told
    assert "outlast worker MODULE --queue gpu" in told
    (empty.folder / "agent.py").write_text(REMOTE)
    taker = empty.worker("--queue", "gpu", "--tasks", "1")
    workers.append(taker)
    empty.until(lambda: empty.status("abc").status == "completed")
    taker.send_signal(signal.SIGTERM)
    out, _ = taker.communicate(timeout=30)
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert lines["queues"] == "gpu"
    assert "workflows" not in lines


def test_a_worker_may_leave_the_workflows_to_others(
    empty: World, workers: list[subprocess.Popen[str]]
) -> None:
    """With --no-workflows the same module gives a worker of its queues only."""
    (empty.folder / "agent.py").write_text(ASKING)
    workers.append(empty.worker("--queue", "gpu", "--no-workflows"))
    empty.until(lambda: empty.file.exists() and bool(_live(empty)))
    empty.start("abc")
    (row,) = _rows(empty)
    assert (row.workflows, row.queues) == ((), ("gpu",))
    assert empty.status("abc").status == "ready"
    workers.append(empty.worker())
    empty.until(lambda: empty.status("abc").status == "completed")


@pytest.mark.parametrize(
    ("code", "options", "words"),
    [
        (REMOTE, (), "the modules declare no workflow"),
        (SLOW, ("--queue", "gpu"), "the modules declare no step with a queue"),
        (SLOW, ("--no-workflows",), "there is nothing to run"),
        (REMOTE, ("--queue", "a:b"), "'a:b' cannot be the name of a queue"),
    ],
)
def test_a_worker_without_work_is_refused(
    empty: World, code: str, options: tuple[str, ...], words: str
) -> None:
    """Modules and options that leave nothing to do are an error, with what to name."""
    (empty.folder / "agent.py").write_text(code)
    process = empty.worker(*options)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 1
    assert words in error
    assert not empty.file.exists()


def test_a_queue_that_no_step_has_is_said(
    empty: World, workers: list[subprocess.Popen[str]]
) -> None:
    """A mistyped queue is served, as a queue of other code may be, and said."""
    (empty.folder / "agent.py").write_text(REMOTE)
    process = empty.worker("--queue", "gpuu")
    workers.append(process)
    empty.until(lambda: empty.file.exists() and bool(_live(empty)))
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=30)
    assert (
        "serves the queue 'gpuu', and no step that it knows is declared with it (declared: 'gpu')"
        in error
    )
