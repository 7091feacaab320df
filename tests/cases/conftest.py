"""Faults that users of comparable systems met, each as a test named after its number in `docs/cases.md`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Helpers of this folder are imported by name, and so are the real processes of the crash tests.
_HERE = Path(__file__).parent
for _folder in (_HERE, _HERE.parent / "crash"):
    sys.path.insert(0, str(_folder))

pytest.register_assert_rewrite("crash_bench")


@pytest.fixture
def bench(tmp_path: Path):
    """An empty database file, and worker processes that end with the test."""
    from crash_bench import Bench

    with Bench.opened(tmp_path) as bench:
        yield bench


@pytest.fixture
def server_bench(tmp_path: Path, postgres_url: str):
    """An empty PostgreSQL database, and worker processes that end with the test."""
    from crash_bench import Bench

    with Bench.opened(tmp_path, url=postgres_url) as bench:
        yield bench


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a SQLite file that does not exist yet, or of an empty PostgreSQL database."""
    if request.param == "postgres":
        return request.getfixturevalue("postgres_url")
    return f"sqlite:///{tmp_path / 'cases.db'}"


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """The URL of a SQLite file that does not exist yet, for what has nothing to do with the kind of store."""
    return f"sqlite:///{tmp_path / 'cases.db'}"
