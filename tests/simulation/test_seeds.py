"""Thousands of whole systems, each from a seed: whatever happens to them, the invariants hold after every event.

OUTLAST_SEEDS=100000 pytest tests/simulation/test_seeds.py      more of them
OUTLAST_FIRST_SEED=7000000 …                                    others
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlast.testing.simulation.play import play
from outlast.testing.simulation.scenario import Scenario
from outlast.testing.simulation.search import search

FIRST = int(os.environ.get("OUTLAST_FIRST_SEED", "0"))
SEEDS = int(os.environ.get("OUTLAST_SEEDS", "3000"))
CHUNK = 250
KEPT = sorted((Path(__file__).parent / "kept").glob("*.json"))


def look_at(first: int, count: int) -> None:
    """Play so many seeds from the first one; one that fails is made small and printed."""
    finding = search(range(first, first + count))
    if finding is not None:
        pytest.fail(str(finding), pytrace=False)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, CHUNK))
def test_every_seed_keeps_the_invariants(first: int) -> None:
    """Random shapes, people, faults and disturbances; results fit, journals replay, the world was changed as recorded."""
    look_at(first, min(CHUNK, FIRST + SEEDS - first))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1_000_000, 1_100_000, 1000))
def test_many_more_seeds_keep_the_invariants(first: int) -> None:
    """The same for a hundred thousand others."""
    look_at(first, 1000)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_failed_once_holds(path: Path) -> None:
    """Every scenario that has found a fault is kept, as small as it could be made."""
    played = play(Scenario.from_json(path.read_text()))
    assert played.violation is None, f"{played.violation}\n" + "\n".join(played.trace[-40:])
