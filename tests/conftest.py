"""Hypothesis profiles: `quick` by default, `soak` by `--hypothesis-profile=soak`. Neither judges by time.

`quick` draws the same examples each time; `soak` draws many others.

Always-replay is on for every test, and for every process that a test starts: whatever a worker runs is replayed after each of its
turns. A test whose code is not deterministic on purpose says so with the mark `without_always_replay(why)`.

Each test module is an app of its own: `outlast.open()` sees what it declares and imports, and not what other test modules declare.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from outlast.testing import always_replay
from outlast.workflows import registry
from outlast.workflows.definition import Definition

if TYPE_CHECKING:
    from pgbouncer import PgBouncer
    from postgres_server import PostgresServer
    from postgres_shared import Databases

# Helpers that tests of several folders use are found by their names. Last on the path: no folder here hides a module.
sys.path.append(str(Path(__file__).parent))

# The suite is shipped with the library: let pytest explain its assertions as it does those of tests.
pytest.register_assert_rewrite("outlast.testing.conformance")

settings.register_profile(
    "quick",
    max_examples=35,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "soak",
    max_examples=10_000,
    stateful_step_count=100,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("quick")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark."""
    config.addinivalue_line(
        "markers", "without_always_replay(why): runs are not replayed after each turn"
    )


@pytest.fixture(autouse=True)
def _levels() -> Iterator[None]:
    """Let no test hear more, or less, because one before it has set what is logged."""
    loggers = [logging.getLogger(), logging.getLogger("outlast")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture(autouse=True)
def _always_replay(request: pytest.FixtureRequest) -> Iterator[None]:
    """Replay each run after each turn, and fail the test when that shows a difference."""
    if request.node.get_closest_marker("without_always_replay") is not None:
        yield
        return
    with always_replay():
        yield


@pytest.fixture(autouse=True)
def _own_declarations(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are unique in an app, and not over all tests."""
    module = getattr(request, "module", None)
    used = vars(module).values() if module is not None else ()
    modules = {one.__module__ for one in list(used) if issubclass(type(one), Definition)}
    own = [one for one in registry._declared if one.__module__ in modules]
    monkeypatch.setattr(registry, "_declared", own)


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """The PostgreSQL server that a run's tests share: never to be stopped or set up otherwise."""
    from postgres_shared import shared_server

    base = tmp_path_factory.getbasetemp()
    server = shared_server(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)
    yield server
    server.leave()


@pytest.fixture(scope="session")
def postgres_databases(postgres_server: PostgresServer) -> Iterator[Databases]:
    """What makes databases on that server."""
    from postgres_shared import Databases

    databases = Databases(postgres_server)
    yield databases
    databases.close()


@pytest.fixture
def postgres_url(postgres_databases: Databases) -> Iterator[str]:
    """The URL of an empty PostgreSQL database."""
    with postgres_databases.fresh() as url:
        yield url


@pytest.fixture
def pgbouncer(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    """PgBouncer in transaction mode before that server: `pgbouncer.url(…)` of a database is the way through it."""
    from pgbouncer import PgBouncer

    with PgBouncer.opened(postgres_server) as pooler:
        yield pooler
