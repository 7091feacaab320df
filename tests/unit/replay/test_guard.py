"""The guard: the audit hook round workflow code, early bindings, and the check of a workflow's source."""

# ruff: noqa: D102, I001, PTH118, PTH123, PTH208, SIM115

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import os
import os.path
import pathlib
import random
import secrets
import socket
import subprocess
import threading
import time
import traceback
import urllib.parse
import urllib.request
import uuid
import warnings
from collections.abc import Callable
from datetime import datetime
from random import randint as roll
from time import time as clock
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from outlast.errors import ForbiddenInWorkflowError
from outlast.replay.guard import check_source, early_bindings, outside_replay
from outlast.replay.loop import WorkflowLoop
from outlast.replay.wait import originals


class IdleHost:
    """A host for runs that wait for nothing."""

    def start_timer(self, delay_seconds, handle):
        raise AssertionError

    def cancel_timer(self, handle):
        raise AssertionError

    def time(self):
        return 0.0

    def begin(self, startable, task_path):
        raise AssertionError


def in_workflow(act: Any) -> Any:
    """Return what a function gives when workflow code calls it."""

    async def main():
        return act()

    loop = WorkflowLoop(IdleHost())
    task = loop.spawn(main())
    loop.run_until_idle()
    loop.close()
    return task.result()


# The audit hook


@pytest.mark.parametrize(
    "forbidden",
    [
        lambda: open(os.devnull),
        lambda: pathlib.Path(__file__).read_text(),
        lambda: os.listdir("/"),
        lambda: socket.socket(),
        lambda: socket.getaddrinfo("localhost", 1),
        lambda: subprocess.run(["true"]),
        lambda: os.system("true"),
        lambda: os.fork(),
    ],
)
def test_io_in_a_workflow_is_refused(forbidden):
    """Files, sockets and processes raise before anything has happened, and say what to write instead."""
    with pytest.raises(ForbiddenInWorkflowError) as caught:
        in_workflow(forbidden)
    assert "@step" in caught.value.hint


def test_io_elsewhere_is_free():
    """Outside a run, also after one and in a callback of another loop, nothing is refused."""
    in_workflow(lambda: None)
    open(os.devnull).close()

    async def main():
        open(os.devnull).close()

    asyncio.run(main())


def test_other_threads_are_free():
    """The guard is for the thread in which the workflow runs."""
    seen: list[Any] = []
    go, done = threading.Event(), threading.Event()

    def work():
        go.wait(10)
        try:
            open(os.devnull).close()
            seen.append("opened")
        finally:
            done.set()

    def act():
        go.set()
        done.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    in_workflow(act)
    thread.join()
    assert seen == ["opened"]


def test_imports_logs_warnings_and_tracebacks_pass(tmp_path, monkeypatch):
    """What the interpreter and loggers read and write is not the workflow's doing."""
    (tmp_path / "lazily_imported.py").write_text("def fail():\n    raise ValueError\n")
    monkeypatch.syspath_prepend(tmp_path)
    handler = logging.FileHandler(tmp_path / "run.log", delay=True)
    logger = logging.getLogger("test_guard")
    logger.addHandler(handler)

    def act():
        import lazily_imported

        try:
            lazily_imported.fail()
        except ValueError:
            text = traceback.format_exc()
            logger.exception("failed")
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            warnings.warn("careful", stacklevel=1)
        ZoneInfo.no_cache("Europe/Berlin")
        return text

    try:
        assert "raise ValueError" in in_workflow(act)
    finally:
        logger.removeHandler(handler)
        handler.close()
    assert "failed" in (tmp_path / "run.log").read_text()


def test_a_run_started_by_an_import_is_guarded_too(tmp_path, monkeypatch):
    """Frames of the importer below the loop are no excuse."""
    (tmp_path / "runs_at_import.py").write_text("from tests_hook import act\nact()\n")
    module = type(os)("tests_hook")
    module.act = lambda: in_workflow(lambda: open(os.devnull))
    monkeypatch.setitem(__import__("sys").modules, "tests_hook", module)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ForbiddenInWorkflowError):
        __import__("runs_at_import")


def test_the_library_may_lift_the_guard():
    """`outside_replay` lifts the guard for a block, and only for it."""

    def act():
        with outside_replay():
            open(os.devnull).close()
        open(os.devnull)

    with pytest.raises(ForbiddenInWorkflowError):
        in_workflow(act)
    with outside_replay():
        open(os.devnull).close()


# Early bindings


def test_early_bindings_are_found():
    """A name bound to asyncio's own function is named; one bound to ours is not."""
    WorkflowLoop(IdleHost()).close()
    names: dict[str, Any] = {
        "waits": originals()["wait_for"],
        "collect": originals()["as_completed"],
        "unused": originals()["wait"],
        "fine": asyncio.wait,
        "run": originals()["run"],
    }
    text = "async def flow():\n    await waits(fine, 1)\n    return lambda: collect(run)"
    exec(text, names)  # noqa: S102
    assert early_bindings(names["flow"]) == ["collect", "waits"]


# The check of the source


def lines(function: Any) -> list[str]:
    """Return the names that the check found."""
    return [finding.name for finding in check_source(function)]


def test_clock_randomness_and_io_are_found():
    """Each call that replay cannot repeat is found by its full name, through aliases of module and name."""

    async def flow():
        time.time()
        clock()
        datetime.now(dt.UTC)
        dt.datetime.utcnow()
        dt.date.today()
        random.random()
        roll(1, 6)
        random.Random()
        uuid.uuid4()
        os.urandom(3)
        secrets.token_hex()
        open("x")
        pathlib.Path("x").read_text()
        urllib.request.urlopen("x")
        socket.create_connection(("x", 1))
        subprocess.run(["x"])
        time.sleep(1)
        threading.Thread(target=print)
        os.getenv("X")
        os.environ.get("X")
        await asyncio.to_thread(print)

    assert lines(flow) == [
        *("time.time", "time.time", "datetime.datetime.now", "datetime.datetime.utcnow"),
        *("datetime.date.today", "random.random", "random.randint", "random.Random", "uuid.uuid4"),
        *("os.urandom", "secrets.token_hex", "open", "pathlib.Path.read_text"),
        *("urllib.request.urlopen", "socket.create_connection", "subprocess.run", "time.sleep"),
        *("threading.Thread", "os.getenv", "os.environ.get", "asyncio.to_thread"),
    ]


async def visit(name: str) -> str:
    """Stand in for a step."""
    return name


def test_work_in_the_order_of_a_set_is_found():
    """Sets of text have another order in each process: replay would give steps each other's results."""

    async def flow(group: Any):
        for name in {"a", "b"}:
            await visit(name)
        names = set("ab")
        for name in names:
            group.create_task(visit(name))
        await asyncio.gather(*(visit(name) for name in names))
        await asyncio.gather(*[visit(name) for name in frozenset("ab")])
        hash("a")

    assert lines(flow) == [*["iterating over a set"] * 4, "hash"]
    assert "sorted(" in str(check_source(flow)[0])


def test_sets_that_begin_no_work_pass():
    """Counting, testing and sorting a set is the same in each process."""

    async def flow(names: set[str]):
        known = {"a", "b"}
        total = 0
        for name in known:
            total += len(name)
        for name in sorted(known):
            await visit(name)
        names = list("ab")
        for name in names:
            await visit(name)
        return (
            total,
            "a" in known,
            {name.upper() for name in known},
            max(len(name) for name in sorted(known)),
        )

    assert lines(flow) == []


def test_findings_name_line_and_remedy():
    """A finding names file and line, and what to write instead."""

    async def flow():
        return time.time()

    (finding,) = check_source(flow)
    assert finding.line == flow.__code__.co_firstlineno + 1
    assert finding.filename == __file__
    assert "outlast.now()" in str(finding)


def test_local_imports_are_followed():
    """Imports within the workflow count as those of the module do."""

    async def flow():
        import requests
        from secrets import token_hex as token
        from time import monotonic

        monotonic()
        token()
        requests.get("x")

    assert lines(flow) == ["time.monotonic", "secrets.token_hex", "requests.get"]


class Proxy:
    """Stand in for a proxy that has nothing behind it yet, and says so to whoever asks."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


proxy = Proxy()


def step(function: Any) -> Any:
    """Stand in for the decorator of the same name."""
    return function


def test_harmless_code_is_not_reported():
    """Look-alikes, local names, seeded generators, errors, pure parts of modules and nested steps pass."""

    class Shop:
        def open(self):
            return self

        def now(self):
            return self

    async def flow(time: Any, random: Any):
        @step
        async def reads():
            return open("x")

        time.time()
        random.random()
        Shop().open().now()
        proxy.get("x")
        proxy()
        urllib.parse.quote("x")
        os.path.join("a", "b")
        dt.datetime.fromisoformat("2026-01-01")
        dt.timedelta(seconds=1)
        pathlib.Path("x").with_suffix(".py")
        uuid.UUID(int=3)
        uuid.uuid5(uuid.NAMESPACE_DNS, "x")
        raise subprocess.CalledProcessError(1, "x")

    async def seeded():
        return random.Random(4)

    assert lines(flow) == []
    assert lines(seeded) == []


def test_code_without_source_yields_nothing():
    """Built-in functions and generated code cannot be read, and that is no error."""
    assert check_source(len) == []
    names: dict[str, Any] = {}
    exec("async def flow(): import time; time.time()", names)  # noqa: S102
    assert check_source(names["flow"]) == []


def traced(**options: object) -> Callable[[Any], Any]:
    """Stand in for a decorator that takes options."""
    return lambda function: function


def test_what_is_evaluated_where_the_workflow_is_defined_is_harmless():
    """Decorators, defaults and annotations are computed once, at import; each run finds the same."""

    @traced(timeout=dt.timedelta(seconds=float(os.environ.get("RUN_TIMEOUT", "60"))))
    async def flow(
        seconds: float = float(os.getenv("SECONDS", "60")),  # noqa: B008
        kind: type(time.time()) = 1.0,
        *,
        size: int = len({time.time()}),  # noqa: B008
    ) -> type(os.getenv("KIND")):
        return None

    assert check_source(flow) == []


def test_what_is_evaluated_within_the_workflow_is_found():
    """Also in the decorators, defaults and annotations of functions that each run defines anew."""

    async def flow() -> None:
        @traced(at=time.time())
        def inner(name: str | None = os.getenv("NAME")) -> None:  # noqa: B008
            return None

        inner()

    assert [found.name for found in check_source(flow)] == ["time.time", "os.getenv"]
