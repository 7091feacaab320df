"""Crash tests: real processes, killed and stopped for real."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# The scripts of this folder import each other by name, as they do when they run as processes.
sys.path.insert(0, str(Path(__file__).parent))

# Their assertions say as much as those of the tests.
pytest.register_assert_rewrite(
    "chaos_bench", "chaos_check", "chaos_file", "chaos_scene", "crash_bench", "kill_point"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything here."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.crash)


@pytest.fixture
def bench(tmp_path: Path):
    """An empty database, and processes that end with the test."""
    from crash_bench import Bench

    with Bench.opened(tmp_path) as bench:
        yield bench
