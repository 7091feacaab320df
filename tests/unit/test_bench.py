"""The benchmarks run, and count what they are to count; how fast anything is, no test asks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.floor import floor
from bench.flows import in_turn
from bench.killed import s5, s6
from bench.place import Memory, Place, Sqlite
from bench.scenario import s1, s2, s3, s4, s7

FLOWS = [in_turn]
"""What is declared beside these belongs to these tests."""


@pytest.fixture(params=[Sqlite, Memory])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Where stores are made."""
    return request.param(tmp_path)


@pytest.mark.parametrize("scenario", [s1, s2, s3])
def test_runs_are_timed(place: Place, scenario: Any) -> None:
    """As many as are asked for."""
    told = asyncio.run(scenario(place, number=3))
    assert told["n"] == 3
    assert told["seconds"] > 0


def test_a_lone_run_of_ten_steps_is_twelve_commits(tmp_path: Path) -> None:
    """Its start, its outcomes and its end."""
    told = asyncio.run(s7(Sqlite(tmp_path), number=2))
    assert told["commits_sent_per_run"] == 12
    assert told["kept_bytes_per_run"] >= 0


def test_what_is_killed_goes_on(tmp_path: Path) -> None:
    """And repeats no step that had its outcome."""
    place = Sqlite(tmp_path)
    told = asyncio.run(s5(place, number=2))
    assert told["steps_before"] == 14
    assert told["repeated"] == 0
    told = asyncio.run(s6(place, number=5))
    assert told["steps_before"] == 6
    assert told["repeated"] == 0


def test_parked_runs_hear_their_message(tmp_path: Path) -> None:
    """All of them."""
    told = asyncio.run(s4(Sqlite(tmp_path), number=2))
    assert told["n"] == 2


def test_the_floor_is_a_rate(tmp_path: Path) -> None:
    """Of commits."""
    assert floor(Sqlite(tmp_path), 5)["rate"] > 0
