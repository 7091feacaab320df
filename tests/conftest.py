"""Hypothesis profiles: `quick` by default, `soak` by `--hypothesis-profile=soak`. Neither judges by time.

`quick` draws the same examples each time; `soak` draws many others.

Always-replay is on for every test, and for every process that a test starts: whatever a worker runs is replayed after each of its
turns. A test whose code is not deterministic on purpose says so with the mark `without_always_replay(why)`.

Each test module is an app of its own: `outlast.open()` sees what it declares and imports, and not what other test modules declare.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from outlast.testing import always_replay
from outlast.workflows import registry
from outlast.workflows.definition import Definition

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
